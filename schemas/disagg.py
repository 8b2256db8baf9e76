"""What the two legs of a disaggregated request tell each other through the gateway.

Source: trtllm-wire.md 1.3. The gateway relays this object; only the two workers read what is in it.
"""

import hashlib
import hmac
import json
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from schemas.openai.usage import Usage

CONTEXT_ONLY = "context_only"
GENERATION_ONLY = "generation_only"
CONTEXT_AND_GENERATION = "context_and_generation"

CONTEXT_FIRST = 0
GENERATION_FIRST = 1

PENDING_FINISH_REASONS = frozenset({"length", "not_finished"})
"""Finish reasons of a context leg that mean "one token made, to be continued"; any other one is the whole answer."""


_RequestNumber = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class DisaggregatedParams(Struct, kw_only=True):
    """The hand-off, as it stands in requests and in a context leg's choices.

    `request_type` is one of `context_only`, `generation_only`, `context_and_generation`. Ids have up to 63 bits.
    `schedule_style` is 0 (context first) or 1 (generation first). `encoded_opaque_state` is base64 of the engine's own bytes and
    is never looked into on the way. `ctx_info_endpoint` says where the generation worker finds the context worker.
    """

    request_type: str
    first_gen_tokens: list[_Token] | None | UnsetType = UNSET
    # A list of {token_id, logprob, rank} per position, or plain floats: kept as the engine wrote it.
    first_gen_log_probs: list[Any] | None | UnsetType = UNSET
    first_gen_logits: list[Any] | None | UnsetType = UNSET
    ctx_request_id: _RequestNumber | None | UnsetType = UNSET
    encoded_opaque_state: str | None | UnsetType = UNSET
    draft_tokens: list[_Token] | None | UnsetType = UNSET
    disagg_request_id: _RequestNumber | None | UnsetType = UNSET
    ctx_dp_rank: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None | UnsetType = UNSET
    ctx_info_endpoint: str | list[str] | None | UnsetType = UNSET
    schedule_style: Annotated[int, Meta(ge=CONTEXT_FIRST, le=GENERATION_FIRST)] | None | UnsetType = UNSET
    ctx_usage: Usage | None | UnsetType = UNSET
    return_prompt_token_ids_b64: bool | None | UnsetType = UNSET
    resolved_thinking: bool | None | UnsetType = UNSET
    conversation_id: str | None | UnsetType = UNSET


class OpaqueState(Struct, kw_only=True):
    """What our own workers put into `encoded_opaque_state` (msgpack, then base64): where the state is kept and what it must be.

    `handle` names it at `GET /_packrelay/handoff/{handle}`; `model` and `engine` must equal the fetching worker's; `tokens` is the
    length of the prompt whose state it is; `size` (bytes) and `digest` (BLAKE2b-128, hex) are those of the state.
    """

    handle: str
    model: str
    engine: str
    tokens: int
    size: int
    digest: str


def handoff_signature(key: str, ctx_info_endpoint: str | list[str] | None, encoded_opaque_state: str | None) -> str:
    """The value of `x-trtllm-disagg-auth` for a generation request: proof that the hand-off was not written by a client.

    HMAC-SHA256 over the two fields that make a worker fetch or trust something, as sorted, unspaced, ASCII-escaped JSON
    (trtllm-wire.md 1.8). Compare with `hmac.compare_digest`.
    """
    endpoint = ctx_info_endpoint[0] if isinstance(ctx_info_endpoint, list) and ctx_info_endpoint else ctx_info_endpoint
    signed = {"ctx_info_endpoint": endpoint, "encoded_opaque_state": encoded_opaque_state}
    message = json.dumps(signed, sort_keys=True, separators=(",", ":")).encode("ascii")
    return "sha256=" + hmac.new(key.encode("utf-8"), message, hashlib.sha256).hexdigest()


def worker_signature(key: str) -> str:
    """The value of `x-packrelay-auth`: shows a worker that its caller holds the key, without telling it to who listens.

    Who listens can repeat it: on a network that others share, let TLS keep it secret. Compare with `hmac.compare_digest`.
    """
    return "sha256=" + hmac.new(key.encode("utf-8"), b"x-packrelay-auth", hashlib.sha256).hexdigest()
