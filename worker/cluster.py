"""A worker's place in a cluster as its process has it: only where it is asked for, because it needs an extra.

RegistrationRefused   the worker cannot register: the extra is not installed
"""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from schemas.cluster import etcd_addresses
from worker.config import WorkerConfig

if TYPE_CHECKING:  # it imports aiohttp, which not every worker has
    from worker.registration import Registrar


class RegistrationRefused(Exception):
    """The worker cannot register. The message is for the operator."""


def registrar_of(config: WorkerConfig, port: int) -> "Registrar | None":
    """What keeps the worker registered, given the port it really listens on; None if nothing is to. Raises RegistrationRefused."""
    if config.cluster_uri is None:
        return None
    try:
        from worker.registration import Cluster, Registrar, registration_of
    except ModuleNotFoundError as error:
        raise RegistrationRefused(
            f"--cluster-uri needs the extra `etcd`: pip install 'packrelay[etcd]' ({error})."
        ) from error
    cluster = Cluster(
        addresses=etcd_addresses(config.cluster_uri),
        name=config.cluster_name,
        heartbeat_interval=config.heartbeat_interval,
        inactive_timeout=config.inactive_timeout,
    )
    reached = urlsplit(config.base_url(port))
    return Registrar(cluster, registration_of(config.role, reached.hostname or config.host, reached.port or 80))
