"""Which discovery a gateway has: none, or the one its settings name."""

from functools import partial

from gateway.config import GatewayConfig
from gateway.discovery.base import Discovery
from gateway.fleet import Fleet
from gateway.links.choice import link_of
from schemas.cluster import etcd_addresses


class DiscoveryRefused(Exception):
    """There can be no such discovery: the extra is not installed. The message is for the operator."""


def discovery_of(config: GatewayConfig, fleet: Fleet) -> Discovery | None:
    """What finds workers for the fleet; None if they are those given. Raises DiscoveryRefused."""
    if config.cluster_uri is None:
        return None
    try:
        from gateway.discovery.etcd import Cluster, EtcdDiscovery
    except ModuleNotFoundError as error:
        raise DiscoveryRefused(
            f"--cluster-uri needs the extra `etcd`: pip install 'packrelay[etcd]' ({error})."
        ) from error
    cluster = Cluster(
        addresses=etcd_addresses(config.cluster_uri),
        name=config.cluster_name,
        inactive_timeout=config.inactive_timeout,
    )
    return EtcdDiscovery(cluster, fleet, partial(link_of, config))
