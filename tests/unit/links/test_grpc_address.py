"""How a link finds a worker's channel."""

import json

import pytest

from gateway.links.base import ConnectFailed
from gateway.links.grpc_address import Address
from tests.unit.links.exchange import Serve
from tests.unit.links.raw_server import Peer, always, replying


def server_info(port: int | None) -> bytes:
    """A worker's reply to GET /server_info, on a connection that ends with it."""
    ours = {"frames": 1, "deferred": True, "grpc_port": port, "model": "m", "engine": "e", "version": "0"}
    body = json.dumps({"packrelay": ours}).encode()
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize(("url", "address"), [("grpc://h:1", "h:1"), ("grpc://[::1]:2", "[::1]:2")])
async def test_a_grpc_url_says_it(url: str, address: str) -> None:
    """Nobody is asked for it, however often it did not work."""
    place = Address(url)
    place.forget()

    assert await place.find() == address


async def test_a_worker_is_asked_once_and_again_after_a_failure(serve: Serve) -> None:
    """The port comes from /server_info; a worker that was started anew may have another one."""
    ports = iter([7001, 7002])

    async def script(peer: Peer) -> None:
        await replying(server_info(next(ports)))(peer)

    server = await serve(script)
    place = Address(server.url)

    assert [await place.find(), await place.find(), server.connections] == ["127.0.0.1:7001", "127.0.0.1:7001", 1]
    place.forget()
    assert await place.find() == "127.0.0.1:7002"


@pytest.mark.parametrize(
    "reply", [server_info(None), b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", b"?\r\n\r\n"]
)
async def test_a_worker_without_a_channel_cannot_be_connected_to(serve: Serve, reply: bytes) -> None:
    """A stock worker, one without a gRPC port, and what is no worker at all are ConnectFailed."""
    server = await serve(always(reply))

    with pytest.raises(ConnectFailed, match="channel"):
        await Address(server.url).find()
