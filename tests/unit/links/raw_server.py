"""A server that says scripted bytes, for tests of what reads them: nothing in it knows HTTP beyond a request's length."""

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import NamedTuple, Self

LAST_CHUNK = b"0\r\n\r\n"

_LENGTH = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)


class RawRequest(NamedTuple):
    """A request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self._reader = reader
        self._writer = writer
        self.number = number
        """Which connection of the server this is, from 1."""

    async def request(self) -> RawRequest:
        """The next request. Raises IncompleteReadError when the client has closed the connection instead."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await self._reader.readexactly(int(length[1])) if length else b""
        line, *fields = head.decode("latin-1").strip().split("\r\n")
        return RawRequest(
            line, {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}, body
        )

    async def head(self) -> None:
        """Read only the head of the next request, and leave its body unread."""
        await self._reader.readuntil(b"\r\n\r\n")

    async def send(self, *pieces: bytes) -> None:
        """Write the pieces one by one, letting the client read between them."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            await turns()

    def reset(self) -> None:
        """End the connection with a reset, not with an orderly end."""
        connection: socket.socket = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the client has ended the connection, however it did that."""
        try:
            while await self._reader.read(65536):
                continue
        except ConnectionError:
            return


Script = Callable[[Peer], Awaitable[None]]


class RawServer:
    """Runs the script for each connection, and closes the connection when the script is over."""

    def __init__(self, script: Script, *, tls: ssl.SSLContext | None = None) -> None:
        self._script = script
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.finished = asyncio.Event()
        """Set when a script has come to its end by itself."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        scheme, host = ("https", "localhost") if self._tls else ("http", "127.0.0.1")
        self.url = f"{scheme}://{host}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop_listening(self) -> None:
        """Refuse connections from now on; those that exist stay."""
        self._server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._run(Peer(reader, writer, self.connections), writer), name="raw-server-peer")
        self._tasks.add(task)

    async def _run(self, peer: Peer, writer: asyncio.StreamWriter) -> None:
        try:
            await self._script(peer)
            self.finished.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client went away, which is its right
        finally:
            writer.close()


def replying(*replies: bytes) -> Script:
    """The script that answers the requests of a connection with these replies in turn, and then closes it."""

    async def script(peer: Peer) -> None:
        for reply in replies:
            await peer.request()
            await peer.send(reply)

    return script


def always(reply: bytes) -> Script:
    """The script that answers every request with this reply."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(reply)

    return script


async def turns(count: int = 3) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Turn the loop until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():
            await turns(1)


async def pass_time(seconds: float) -> None:
    """Let real time pass, where elapsed time is what a test is about."""
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, passed.set)
    await passed.wait()


def chunked(*chunks: bytes) -> bytes:
    """The chunks in HTTP's chunked coding, with its end."""
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks if chunk) + LAST_CHUNK
