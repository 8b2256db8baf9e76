"""What the gateway says of its fleet at `/cluster_info`."""

from urllib.parse import urlsplit

from msgspec import UNSET

from gateway.discovery.base import Discovery
from gateway.fleet import Fleet
from gateway.member import Role
from schemas.cluster import ROLES, ClusterInfo, CurrentWorkers, MinimalInstances, ServerLists


def cluster_info(fleet: Fleet, discovery: Discovery | None) -> ClusterInfo:
    """Who can be given work, and with discovery also who is registered and how many there must be."""
    aggregated = _servers(fleet, Role.BOTH)
    lists = ServerLists(
        context=_servers(fleet, Role.CONTEXT),
        generation=_servers(fleet, Role.GENERATION),
        aggregated=aggregated or UNSET,
    )
    info = ClusterInfo(is_ready=fleet.can_serve(), server_lists=lists)
    if discovery is not None:
        known = discovery.registered()
        info.current_workers = CurrentWorkers(
            context_servers=[worker for worker in known if worker.role == ROLES["context"]],
            generation_servers=[worker for worker in known if worker.role == ROLES["generation"]],
        )
        info.minimal_instances = MinimalInstances(
            context_servers=fleet.minimum.get(Role.CONTEXT, 0), generation_servers=fleet.minimum.get(Role.GENERATION, 0)
        )
    return info


def _servers(fleet: Fleet, role: Role) -> list[str]:
    """The prepared workers of a role, as `host:port`."""
    return [urlsplit(worker.link.url).netloc for worker in fleet.workers if worker.role is role and worker.models]
