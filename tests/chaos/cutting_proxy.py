"""A TCP proxy that passes on so many bytes of what a server says, or is told, and then resets the connection on both sides."""

import asyncio
import socket
import struct
from enum import Enum
from types import TracebackType
from typing import Self

RESET = struct.pack("ii", 1, 0)
"""A linger of zero seconds: closing resets."""


class Direction(Enum):
    """Which way bytes go."""

    ANSWERS = "answers"
    REQUESTS = "requests"


class CuttingProxy:
    """Passes everything on until it is armed. `passed` counts bytes by direction, `cuts` how often it cut."""

    def __init__(self, server_port: int) -> None:
        self.passed = dict.fromkeys(Direction, 0)
        self.cuts = 0
        self._server_port = server_port
        self._armed: Direction | None = None
        self._left = 0
        self._peers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for peer in self._peers:
            peer.cancel()
        await asyncio.gather(*self._peers, return_exceptions=True)

    def arm(self, direction: Direction, offset: int) -> None:
        """Cut once, after `offset` more bytes of this direction, when the next one comes."""
        self._armed, self._left = direction, offset

    def disarm(self) -> bool:
        """Cut no more; whether it has been armed until now."""
        armed, self._armed = self._armed is not None, None
        return armed

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = asyncio.create_task(self._serve(reader, writer), name="proxy-peer")
        self._peers.add(peer)
        peer.add_done_callback(self._peers.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        ways = {
            asyncio.create_task(self._pass(Direction.REQUESTS, reader, to_server), name="proxy-requests"),
            asyncio.create_task(self._pass(Direction.ANSWERS, server, writer), name="proxy-answers"),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            _reset(writer)
            _reset(to_server)

    async def _pass(self, direction: Direction, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Until the source has ended, or the cut."""
        while data := await source.read(65536):
            kept = data[: self._left] if self._armed is direction else data
            self.passed[direction] += len(kept)
            target.write(kept)
            await target.drain()
            if self._armed is direction:
                self._left -= len(kept)
                if len(kept) < len(data):
                    self._armed = None
                    self.cuts += 1
                    return


def _reset(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None and not writer.transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
