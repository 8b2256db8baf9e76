"""One request on a client's connection, and its answer: what ASGI calls `receive` and `send`.

uvicorn's own does the same for any application and costs more than the rest of a small request. This one keeps a body in the pieces
it arrived in (reading stops only while `HIGH_WATER_BYTES` are not taken), writes a head together with the first piece of the body,
and tells who leaves without a task that waits for it.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, Final, Protocol

from starlette.types import ASGIApp, Message, Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

HIGH_WATER_BYTES: Final = 256 << 10
"""A body is not read on while this many bytes of it wait to be taken."""
JOIN_BYTES: Final = 16 << 10
"""A piece of an answer up to this size is copied behind what is to be written before it; a larger one is handed on as it is."""

LEAVING: Final = "packrelay.leaving"
"""The key of a scope under which `Cycle.on_leaving` is found."""

_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_BODILESS: Final = frozenset({204, 304})

_log = logging.getLogger("uvicorn.error")


class Connection(Protocol):
    """Where a request came from."""

    transport: asyncio.Transport
    flow: FlowControl
    loop: asyncio.AbstractEventLoop

    def common_headers(self) -> list[tuple[bytes, bytes]]:
        """What every answer carries."""
        ...

    def answered(self) -> None:
        """The answer is complete."""
        ...


class Cycle:
    """`keep_alive` says whether the connection may take another request afterwards."""

    def __init__(self, connection: Connection, scope: Scope, *, keep_alive: bool, expects_continue: bool) -> None:
        self.scope = scope
        self._bodiless = scope["method"] == "HEAD"
        self._chunks = scope["http_version"] != "1.0"
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_started = False
        self.response_complete = False
        self._connection = connection
        self._transport = connection.transport
        self._flow = connection.flow
        self._expects_continue = expects_continue
        self._pieces: list[bytes] = []
        self._held = 0
        self._whole = False  # Whether all of the body has arrived.
        self._given = False  # Whether all of it was given to the application.
        self._waiter: asyncio.Future[None] | None = None
        self._leaving: Callable[[], None] | None = None
        self._head: bytes | None = None  # A head that waits for the first piece of its body.
        self._chunked = False
        scope[LEAVING] = self.on_leaving

    async def run(self, app: ASGIApp) -> None:
        """Have the application answer. It must: a connection that is owed an answer is closed."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:  # noqa: BLE001  whatever it is, this request is over, and only this one
            _log.exception("The application failed.")
        finally:
            self._leaving = None
            self.scope = {}  # It leads back here, and the collector is not to be needed for that.
            if not self.response_complete:
                self._transport.close()

    # --- what the connection says ---

    def body_arrived(self, piece: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held > HIGH_WATER_BYTES:
            self._flow.pause_reading()
        self._wake()

    def body_ended(self) -> None:
        """All of the body has arrived."""
        self._whole = True
        self._wake()

    def client_left(self) -> None:
        """Nobody waits for the answer any more. A second call does nothing."""
        if self.disconnected or self.response_complete:
            return
        self.disconnected = True
        self._wake()
        if self._leaving is not None:
            self._leaving()

    def on_leaving(self, leaving: Callable[[], None]) -> None:
        """Have `leaving` called once when the client leaves before its answer is complete; at once if it has left."""
        self._leaving = leaving
        if self.disconnected:
            leaving()

    # --- receive ---

    async def receive(self) -> Message:
        """What of the body is here; after its end, that the client has left or was answered."""
        if self._expects_continue and not self._transport.is_closing():
            self._expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self.disconnected or self.response_complete):
            if (self._pieces or self._whole) and not self._given:
                return self._take()
            self._flow.resume_reading()
            await self._wait()
        return {"type": "http.disconnect"}

    def _take(self) -> Message:
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._held = 0
        self._given = self._whole
        return {"type": "http.request", "body": body, "more_body": not self._whole}

    async def _wait(self) -> None:
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- send ---

    async def send(self, message: Message) -> None:
        """The next part of the answer. Waits while the client does not read; what comes after it has left is thrown away."""
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self.response_started = True
            self._head = self._head_of(message["status"], message.get("headers", ()))
        else:
            self._send_body(message.get("body", b""), more=message.get("more_body", False))

    def _head_of(self, status: int, headers: Any) -> bytes:  # Any: pairs of bytes in any iterable, as ASGI has it.
        self._expects_continue = False
        lines = [STATUS_LINE[status][:-2]]
        sized = self._bodiless or status in _BODILESS
        closing = False
        for name, value in (*self._connection.common_headers(), *headers):
            lines.append(b"%b: %b" % (name, value))
            sized = sized or name == b"content-length"
            closing = closing or (name == b"connection" and value.lower() == b"close")
        if not sized and self._chunks:
            # HTTP/1.0 knows no chunks: there the body goes as it is, and ends with the connection (RFC 9112, 6.3).
            self._chunked = True
            lines.append(b"transfer-encoding: chunked")
        if closing:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close")
        if any(map(_CONTROL.search, lines)):
            raise ValueError("A header holds characters that HTTP does not allow.")
        lines.append(b"\r\n")
        return b"\r\n".join(lines)

    def _send_body(self, body: bytes, *, more: bool) -> None:
        head, self._head = self._head or b"", None
        if self._bodiless:
            body = b""
        if not self._chunked:
            self._write(head, body, b"")
        elif body:
            self._write(b"%b%x\r\n" % (head, len(body)), body, b"\r\n" if more else b"\r\n0\r\n\r\n")
        else:
            self._write(head, b"", b"" if more else b"0\r\n\r\n")
        if not more:
            self.response_complete = True
            self._wake()
            if not self.keep_alive:
                self._transport.close()
            self._connection.answered()

    def _write(self, before: bytes, body: bytes, after: bytes) -> None:
        if len(body) <= JOIN_BYTES:
            data = b"%b%b%b" % (before, body, after)
            if data:
                self._transport.write(data)
        else:
            self._transport.writelines([before, body, after])
