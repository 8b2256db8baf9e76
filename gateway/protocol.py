"""uvicorn's HTTP protocol with what it leaves out: limits on heads, our error object, and clients that pipeline or upgrade.

uvicorn itself bounds neither the size of a head nor the time it takes, answers malformed requests in plain text, tells only the
last of several pipelined requests that the client left, sends chunks to HTTP/1.0 clients, and loses the body of a request that
offers an upgrade (`curl --http2` does).
"""

import asyncio
import sys
from typing import Any, ClassVar, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from schemas.codec import encode_json
from schemas.openai.errors import ErrorKind, ServingError

MAX_HEAD_BYTES: Final = 64 << 10
MAX_PIPELINED: Final = 16
MAX_DISCARDED_BYTES: Final = 256 << 20
"""How much of a body is read and thrown away after its request was answered, so that the client gets to read the answer."""

_OFFER: Final = frozenset({b"upgrade", b"connection", b"http2-settings"})
"""The headers an upgrade is offered by."""


class GatewayProtocol(HttpToolsProtocol):
    """One client connection. `head_timeout` is in seconds, for one head to arrive."""

    head_timeout: ClassVar[float] = 15.0

    def __init__(self, *arguments: Any, **named: Any) -> None:  # uvicorn's own signature, passed through
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._begun = False  # A head that is not complete.
        self._head_timer: asyncio.TimerHandle | None = None
        self._refusal: ServingError | None = None
        self._running: RequestResponseCycle | None = None
        self._discarded = 0
        self._data = b""

    # --- the connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_timeout, self._head_too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        for cycle in (self._running, *waiting):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return  # The connection is being closed; what still comes has no meaning.
        self._data = data
        super().data_received(data)
        self._data = b""
        if self._begun and self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout, self._head_too_slow)

    # --- heads ---

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun = True
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._begun = False
        self._stop_head_timer()
        if self.parser.get_method() == b"CONNECT":
            self._refuse(ServingError(ErrorKind.METHOD_NOT_ALLOWED, "This server is no proxy."))
        hosts = sum(1 for name, _ in self.headers if name == b"host")
        if hosts != 1 and (hosts or self.parser.get_http_version() == "1.1"):
            self._refuse(ServingError(ErrorKind.INVALID, "A request has exactly one Host header."))
        if not self.parser.should_upgrade():  # Else it is parsed again without the offer: see below.
            super().on_headers_complete()
            self._bound_pipeline()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            message = f"The head of the request is larger than {MAX_HEAD_BYTES} bytes."
            self._refuse(ServingError(ErrorKind.HEADERS_TOO_LARGE, message))

    def _refuse(self, error: ServingError) -> None:
        """Stop the parser: what a callback raises comes back to `data_received`, which asks for `send_400_response`."""
        self._refusal = error
        raise error

    def _bound_pipeline(self) -> None:
        if len(self.pipeline) > MAX_PIPELINED:
            self._refuse(ServingError(ErrorKind.INVALID, "Too many requests were sent ahead."))
        if self.pipeline:
            # Reading goes on, because that is how a client's leaving is noticed while the request before is answered.
            self.flow.resume_reading()

    def _head_too_slow(self) -> None:
        self._head_timer = None
        if self._begun and not self.transport.is_closing():
            self._refusal = ServingError(ErrorKind.TIMED_OUT_READING, "The head of the request did not arrive in time.")
            self.send_400_response("")
        self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # --- what uvicorn answers itself ---

    def send_400_response(self, msg: str) -> None:
        """Our error object for a request that is not HTTP. Never into the middle of another answer: that one just ends."""
        error = self._refusal or ServingError(ErrorKind.INVALID, msg)
        self._refusal = error
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
            if running.response_started:
                self.transport.close()
                return
        body = encode_json(error.body())
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()

    # --- bodies ---

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._discarded += len(body)
            if self._discarded > MAX_DISCARDED_BYTES:
                self.transport.close()
            return
        super().on_body(body)

    # --- answers ---

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]  # starlette's types
        self._running = cycle
        if cycle.scope["http_version"] == "1.0":
            app = _Unchunked(app, cycle)
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]  # the same callable in uvicorn's types

    # --- upgrades ---

    def _unsupported_upgrade_warning(self) -> None:
        """An offer to upgrade that is not taken is an ordinary request (RFC 9110, 7.8), but the parser stopped at its head."""
        stopped = sys.exception()
        rest = self._data[stopped.args[0] :] if stopped is not None else b""
        kept = [(name, value) for name, value in self.headers if name not in _OFFER]
        head = [
            b"%b %b HTTP/1.1" % (self.parser.get_method(), self.url),
            *(b"%b: %b" % pair for pair in kept),
            b"",
            b"",
        ]
        self.parser = type(self.parser)(self)
        self.data_received(b"\r\n".join(head) + rest)


class _Unchunked:
    """HTTP/1.0 knows no chunks: a body of unknown length goes as it is, and ends with the connection (RFC 9112, 6.3)."""

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_unchunked(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = {name.lower() for name, _ in message.get("headers", ())}
                if b"content-length" not in named:
                    self._cycle.chunked_encoding = False
            elif self._cycle.chunked_encoding is False:
                self._cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, send_unchunked)
