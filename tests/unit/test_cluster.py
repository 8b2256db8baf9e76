"""What the gateway says of its fleet, and how etcd is named."""

import pytest

from gateway.auth import ApiKeys
from gateway.cluster import cluster_info
from gateway.member import Role
from schemas.cluster import Registration, etcd_addresses
from schemas.codec import encode_json
from tests.unit.fake_link import fleet, worker
from tests.unit.gateway_fakes import rig


class Found:
    """A discovery that has found two workers."""

    def registered(self) -> list[Registration]:
        """One of each role."""
        return [Registration(worker_id=str(role), host="h", port=1, role=role) for role in (0, 1)]

    async def start(self) -> None:
        """Nothing."""

    async def close(self) -> None:
        """Nothing."""


def test_cluster_info_has_the_documented_keys() -> None:
    """Without discovery: whether it is ready, and the prepared workers of each role as host and port."""
    context, link = worker(role=Role.CONTEXT, index=0)
    generation, _ = worker(role=Role.GENERATION, index=1)
    unprepared, _ = worker(role=Role.GENERATION, index=2)
    link.url, unprepared.models = "http://10.0.0.1:8001", []
    info = cluster_info(fleet(context, generation, unprepared), None)

    assert encode_json(info) == (
        b'{"is_ready":true,"server_lists":{"context":["10.0.0.1:8001"],"generation":["fake"]}}'
    )


def test_cluster_info_has_what_discovery_found() -> None:
    """With discovery: also who is registered, by role, and the minimum of each."""
    known = fleet()
    known.minimum = {Role.CONTEXT: 1, Role.GENERATION: 2}
    info = cluster_info(known, Found())

    assert encode_json(info).endswith(
        b'"current_workers":{"context_servers":[{"worker_id":"0","host":"h","port":1,"role":0}],'
        b'"generation_servers":[{"worker_id":"1","host":"h","port":1,"role":1}]},'
        b'"minimal_instances":{"context_servers":1,"generation_servers":2}}'
    )


async def test_cluster_info_asks_for_a_key_where_there_are_keys() -> None:
    """It names hosts, which are no business of everybody's."""
    client = rig(keys=ApiKeys([b"secret"])).client
    refused = await client.get("/cluster_info")
    shown = await client.get("/cluster_info", authorization="Bearer secret")

    assert (refused.status, shown.status) == (401, 200)
    assert shown.json() == {"is_ready": True, "server_lists": {"context": [], "generation": []}}


@pytest.mark.parametrize(
    ("uri", "addresses"),
    [
        ("etcd://a:1", ("a:1",)),
        ("etcd://a:1,b:2/", ("a:1", "b:2")),
        ("etcd://a", ("a:2379",)),
        ("etcd://[::1]:5", ("[::1]:5",)),
    ],
)
def test_etcd_is_named_by_its_members(uri: str, addresses: tuple[str, ...]) -> None:
    """One or several, each with etcd's own port if none is said."""
    assert etcd_addresses(uri) == addresses


@pytest.mark.parametrize(
    "uri", ["", "etcd://", "http://a:1", "a:1", "etcd://a:x", "etcd://u@a:1", "etcd://a:1/b", "etcd://a:1,"]
)
def test_anything_else_is_refused_with_the_form(uri: str) -> None:
    """The message says how it is written."""
    with pytest.raises(ValueError, match="expected etcd://HOST:PORT"):
        etcd_addresses(uri)
