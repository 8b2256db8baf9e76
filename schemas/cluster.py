"""How a fleet finds itself: what a worker writes into etcd, and what the gateway says of it at `/cluster_info`.

Keys, values and replies are those of stock workers and orchestrators, so either side can be stock. Source: trtllm-wire.md 2 and 6.
"""

from typing import Annotated, Final
from urllib.parse import urlsplit

from msgspec import UNSET, Meta, Struct, UnsetType

ROLES: Final = {"context": 0, "generation": 1}
"""The roles that take part in disaggregated serving, as numbers; stock has more of them."""

DEFAULT_ETCD_PORT: Final = 2379


class Registration(Struct, kw_only=True):
    """One worker, as the value of its key. `role` is 0 for context, 1 for generation; `worker_id` names one life of a process."""

    worker_id: str
    host: str
    port: Annotated[int, Meta(ge=1, le=65535)]
    role: int


class ServerLists(Struct, kw_only=True):
    """The workers that can be given work, as `host:port`. `aggregated` do both legs; stock fleets have none."""

    context: list[str]
    generation: list[str]
    aggregated: list[str] | UnsetType = UNSET


class CurrentWorkers(Struct, kw_only=True):
    """The workers that are registered."""

    context_servers: list[Registration]
    generation_servers: list[Registration]


class MinimalInstances(Struct, kw_only=True):
    """How many workers of each role must be there before requests are served."""

    context_servers: int
    generation_servers: int


class ClusterInfo(Struct, kw_only=True):
    """The body of `/cluster_info`. The last two are there when workers are discovered."""

    is_ready: bool
    server_lists: ServerLists
    current_workers: CurrentWorkers | UnsetType = UNSET
    minimal_instances: MinimalInstances | UnsetType = UNSET


def key_prefix(cluster_name: str) -> str:
    """What the keys of all workers of a cluster begin with."""
    return f"/trtllm-disagg/{cluster_name}/workers/"


def etcd_addresses(cluster_uri: str) -> tuple[str, ...]:
    """The addresses `host:port` of `etcd://host:port[,host:port]`. Raises ValueError, with a sentence, for anything else."""
    scheme, _, rest = cluster_uri.partition("://")
    if scheme != "etcd" or not rest:
        raise ValueError(f"expected etcd://HOST:PORT[,HOST:PORT], not {cluster_uri!r}.")
    return tuple(_address(part, cluster_uri) for part in rest.rstrip("/").split(","))


def _address(part: str, cluster_uri: str) -> str:
    try:
        parts = urlsplit(f"//{part}")
        host, port = parts.hostname, parts.port or DEFAULT_ETCD_PORT
    except ValueError:
        host, port = None, 0
    if not host or "@" in part or "/" in part:
        raise ValueError(f"expected etcd://HOST:PORT[,HOST:PORT], not {cluster_uri!r}.")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
