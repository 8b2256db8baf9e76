"""Servers and links that leave nothing behind, on both event loops."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from gateway.links.http import HttpLink
from tests.unit.links.exchange import Connect, Drain, Serve, pass_on_until_failure, read_until_failure
from tests.unit.links.raw_server import RawServer, Script, until


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Production runs on uvloop; plain asyncio must do too."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def open_sockets() -> int:
    """Sockets this process holds, whoever forgot them."""
    links = (path.resolve(strict=False) for path in Path("/proc/self/fd").iterdir())
    return sum(1 for link in links if link.name.startswith("socket:"))


@pytest.fixture(params=[read_until_failure, pass_on_until_failure], ids=["read", "passed-on"])
def drain(request: pytest.FixtureRequest) -> Drain:
    """Takes a stream to its end, in both ways there are."""
    way: Drain = request.param
    return way


@pytest.fixture
async def nothing_is_left() -> AsyncIterator[None]:
    """After the test there are no tasks and no sockets that were not there before."""
    tasks, sockets = asyncio.all_tasks(), open_sockets()
    yield
    await until(lambda: open_sockets() <= sockets)
    assert asyncio.all_tasks() - tasks <= {asyncio.current_task()}


@pytest.fixture
async def serve(nothing_is_left: None) -> AsyncIterator[Serve]:
    """Starts servers, and ends them after the test."""
    servers: list[RawServer] = []

    async def start(script: Script) -> RawServer:
        servers.append(RawServer(script))
        return await servers[-1].__aenter__()

    yield start
    for server in servers:
        await server.__aexit__(None, None, None)


@pytest.fixture
async def connect(serve: Serve) -> AsyncIterator[Connect]:
    """Makes links, and holds that closing them leaves no connection."""
    links: list[HttpLink] = []

    def make(server: RawServer, *, max_reply_bytes: int = 1 << 26, max_idle_seconds: float = 4.0) -> HttpLink:
        links.append(HttpLink(server.url, max_reply_bytes=max_reply_bytes, max_idle_seconds=max_idle_seconds))
        return links[-1]

    yield make
    for link in links:
        await link.close()
        assert link.open_connections == 0
