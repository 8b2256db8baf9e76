"""One request on a client's connection, and its answer: what ASGI calls `receive` and `send`.

uvicorn's own does the same for any application and costs more than the rest of a small request. This one keeps a body in the pieces
it arrived in (reading stops only while `HIGH_WATER_BYTES` are not taken), writes a head together with the first piece of the body,
and tells who leaves without a task that waits for it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final, Protocol

from starlette.types import ASGIApp, Message, Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.outbox import Outgoing

HIGH_WATER_BYTES: Final = 256 << 10
"""A body is not read on while this many bytes of it wait to be taken."""
JOIN_BYTES: Final = 16 << 10
"""A piece of an answer up to this size is copied behind what is to be written before it; a larger one is handed on as it is."""

CYCLE: Final = "packrelay.cycle"
"""The key of a scope under which the cycle itself is found, for what ASGI has no words for."""

_CONTROL: Final = bytes({*range(0x20), 0x7F} - set(b"\t\r\n"))
_BODILESS: Final = frozenset({204, 304})

_log = logging.getLogger("uvicorn.error")


Headers = Collection[tuple[bytes, bytes]]


class Connection(Protocol):
    """Where a request came from."""

    transport: asyncio.Transport
    outgoing: Outgoing
    flow: FlowControl
    loop: asyncio.AbstractEventLoop

    def common_head(self) -> bytes:
        """What every answer carries, as lines with their ends before them."""
        ...

    def close_behind(self, cycle: "Cycle") -> None:
        """The answer is complete, and the connection is to end with it."""
        ...

    def over(self, cycle: "Cycle") -> None:
        """The application is done with this request."""
        ...

    def answered(self) -> None:
        """The answer is complete."""
        ...


class Cycle:
    """`keep_alive` says whether the connection may take another request afterwards; `fields` are the request's headers by name."""

    def __init__(
        self,
        connection: Connection,
        scope: Scope,
        fields: dict[bytes, bytes],
        *,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self.scope = scope
        self.fields = fields
        self.task: asyncio.Task[None] | None = None
        self._bodiless = scope["method"] == "HEAD"
        self._chunks = scope["http_version"] != "1.0"
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_started = False
        self.response_complete = False
        self._connection = connection
        self._transport = connection.transport
        self._outgoing = connection.outgoing
        self._flow = connection.flow
        self.expects_continue = expects_continue
        self._pieces: list[bytes] = []
        self._held = 0
        self.is_whole = False  # Whether all of the body has arrived.
        self._begun = False  # Whether some of it was given to the application,
        self._given = False  # and whether all was.
        self._waiter: asyncio.Future[None] | None = None
        self._leaving: Callable[[], None] | None = None
        self._head: bytes | None = None  # A head that waits for the first piece of its body.
        self._chunked = False
        scope[CYCLE] = self

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
                self._outgoing.close()
            self._connection.over(self)

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
        self.is_whole = True
        self._flow.resume_reading()  # Or nobody would hear of the client's leaving.
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

    def body(self) -> bytes | None:
        """The whole body, if it has arrived and nothing of it was received: what `receive` would have given."""
        if not self.is_whole or self._begun or self.disconnected or self.expects_continue:
            return None
        return self._take_pieces()

    async def receive(self) -> Message:
        """What of the body is here; after its end, that the client has left or was answered."""
        if self.expects_continue and not self._transport.is_closing():
            self.expects_continue = False
            self._outgoing.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self.disconnected or self.response_complete):
            if (self._pieces or self.is_whole) and not self._given:
                return self._take()
            self._flow.resume_reading()
            await self._wait()
        return {"type": "http.disconnect"}

    def _take(self) -> Message:
        return {"type": "http.request", "body": self._take_pieces(), "more_body": not self.is_whole}

    def _take_pieces(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        self._held = 0
        self._begun = True
        self._given = self.is_whole
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

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
            self._head = self._head_of(message["status"], list(message.get("headers", ())))
        else:
            self._send_body(message.get("body", b""), more=message.get("more_body", False))

    @property
    def write_paused(self) -> bool:
        """Whether the client does not read what it was written already."""
        return self._flow.write_paused

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """The whole answer, at once; it may not have begun. `headers` say how long the body is."""
        if not self.disconnected:
            self.response_started = True
            self._head = self._head_of(status, headers)
            self._send_body(body, more=False)

    def write(self, piece: bytes) -> bool:
        """A piece of a body that `send` has begun and will end, at once; says whether the client reads as fast as it is written to.

        What comes after the client has left is thrown away.
        """
        if piece and not self.disconnected:  # A chunk of nothing would be the last one.
            self._outgoing.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)
        return not self._flow.write_paused

    def _head_of(self, status: int, headers: Headers) -> bytes:
        self.expects_continue = False
        fields = dict(headers)
        lines = [b"\r\n%b: %b" % header for header in headers]
        if not (self._bodiless or status in _BODILESS or b"content-length" in fields) and self._chunks:
            # HTTP/1.0 knows no chunks: there the body goes as it is, and ends with the connection (RFC 9112, 6.3).
            self._chunked = True
            lines.append(b"\r\ntransfer-encoding: chunked")
        if fields.get(b"connection", b"").lower() == b"close":
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"\r\nconnection: close")
        text = b"".join(lines)
        if text.translate(None, _CONTROL) != text or not text.count(b"\n") == text.count(b"\r") == len(lines):
            raise ValueError("A header holds characters that HTTP does not allow.")
        return b"%b%b%b\r\n\r\n" % (STATUS_LINE[status][:-2], self._connection.common_head(), text)

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
                self._connection.close_behind(self)
            self._connection.answered()

    def _write(self, before: bytes, body: bytes, after: bytes) -> None:
        if len(body) <= JOIN_BYTES:
            data = b"%b%b%b" % (before, body, after)
            if data:
                self._outgoing.write(data)
        else:
            self._outgoing.writelines((before, body, after))
