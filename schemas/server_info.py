"""What a worker says of itself at `/server_info`, beside the keys stock workers have there.

Source: docs/wire.md, trtllm-wire.md 3.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType


class PackrelayInfo(Struct, kw_only=True):
    """Our workers' own key in `/server_info`; a worker without it is stock.

    `frames` is the version of the frames it speaks; `deferred` whether it takes the deferred form; `grpc_port` where the channel
    is, null without one; `model` the served name; `engine` the engine's name; `role` context, generation or both.
    """

    frames: int
    deferred: bool
    grpc_port: int | None
    model: str
    engine: str
    version: str
    role: str = "both"
    max_model_len: int | None = None


class ServerInfo(Struct, kw_only=True):
    """The body of `/server_info`. `disaggregated_params` are keys a generation-first request starts from (ctx_info_endpoint)."""

    disaggregated_params: dict[str, Any] | None | UnsetType = UNSET
    max_batch_size: int | None | UnsetType = UNSET
    packrelay: PackrelayInfo | UnsetType = UNSET
