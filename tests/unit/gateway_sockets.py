"""A gateway on a real socket inside the test's own event loop, and a client that sends exactly the bytes it is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.server import Server, listen, settings_of
from tests.unit.gateway_fakes import Rig, rig


@asynccontextmanager
async def listening(reply: Any = None, **settings: Any) -> AsyncIterator[tuple[Rig, int]]:
    """A gateway and its port; stopped at the end."""
    gateway = rig(reply, **settings)
    listener = listen("127.0.0.1", 0)
    server = Server(settings_of(gateway.door, gateway.parts.config), gateway.parts.lifecycle)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    port: int = listener.getsockname()[1]
    try:
        async with connected(port) as client:  # Connections wait in the listener until the app has started.
            client.send(b"GET /health/live HTTP/1.0\r\nHost: test\r\n\r\n")
            await client.rest()
        yield gateway, port
    finally:
        server.stop()
        await serving


class Connection:
    """One client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    async def drain(self) -> None:
        """Wait until what was sent is on its way."""
        await self.writer.drain()

    async def until(self, mark: bytes) -> bytes:
        """What comes up to and including a mark."""
        return await asyncio.wait_for(self.reader.readuntil(mark), 10)

    async def rest(self) -> bytes:
        """What comes until the connection ends."""
        return await asyncio.wait_for(self.reader.read(), 10)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    """A connection to a port of this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


def post(path: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    """A POST request as bytes."""
    head = [f"POST {path} HTTP/{version}", "Host: test", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode("latin-1") + body
