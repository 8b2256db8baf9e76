"""uvicorn's HTTP protocol with what it leaves out at a worker's port: a head has a size, and a time to arrive in; connections
have a number.
"""

import asyncio
import math
from typing import Any, ClassVar, Final, NoReturn, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from schemas.codec import encode_json
from schemas.openai.errors import ErrorKind, ServingError

MAX_HEAD_BYTES: Final = 64 << 10
MAX_OVERHEAD_BYTES: Final = 256 << 10
"""Bytes behind a head without a byte of body: trailers and chunk extensions, which are not kept."""
HEAD_SECONDS: Final = 15.0
"""How long a head may take to arrive, and how long a new connection may say nothing."""


class WorkerProtocol(HttpToolsProtocol):
    """One connection. What is no request gets the error object, and the connection ends.

    So does the first request of a connection above `max_connections`; those above `most_connections` are told without being read.
    """

    head_seconds = HEAD_SECONDS
    max_connections: ClassVar[int] = 1 << 30
    most_connections: ClassVar[int] = 1 << 30

    def __init__(self, *arguments: Any, **named: Any) -> None:  # uvicorn's own signature, passed through
        super().__init__(*arguments, **named)
        self._in_head = True
        self._in_message = False
        self._messages = 0  # That began in the data at hand.
        self._head_bytes = 0
        self._overhead = 0
        self._crowded = False
        self._refusal: ServingError | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        super().connection_made(transport)
        self._crowded = len(self.connections) > self.max_connections
        if len(self.connections) > self.most_connections:
            self._refusal = _too_many()
            self.send_400_response("")
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused():
            return  # The connection is being closed.
        self._overhead += len(data)
        fresh = not self._in_message
        self._messages = 0
        super().data_received(data)
        if self._refused():
            return
        if self._in_head and (not self._messages or (fresh and self._messages == 1)):
            # Of one that began behind a large body, the size is seen when it is complete.
            self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES or self._overhead > MAX_OVERHEAD_BYTES:
            self._refusal = _too_large()
            self.send_400_response("")

    def _refused(self) -> bool:
        return self._refusal is not None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._in_message = True
        self._messages += 1
        self._head_bytes = 0
        self._overhead = 0
        if self._timer is None:
            self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # What comes later is a trailer, which nobody asked for.
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._overhead = 0
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._stop_waiting()
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse(_too_large())
        if self._crowded:
            self._refuse(_too_many())
        super().on_headers_complete()

    def _refuse(self, error: ServingError) -> NoReturn:
        """Stop the parser, which comes back by way of `send_400_response`."""
        self._refusal = error
        raise error

    def send_400_response(self, msg: str) -> None:
        """The error object for what is not a request, or too large a one; nothing into the middle of another answer."""
        error = self._refusal or ServingError(ErrorKind.INVALID, msg)
        self._refusal = error
        # There is none before the first request, whatever uvicorn's annotation says.
        running = cast("RequestResponseCycle | None", self.cycle)
        if running is None or running.response_complete:
            body = encode_json(error.body())
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
            if error.retry_after is not None:
                head += b"retry-after: %d\r\n" % math.ceil(error.retry_after)
            self.transport.write(STATUS_LINE[error.status] + head + b"\r\n" + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._timer = self.loop.call_later(self.head_seconds, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self._refusal = ServingError(ErrorKind.TIMED_OUT_READING, "The head of the request did not arrive in time.")
            self.send_400_response("")


def _too_large() -> ServingError:
    message = f"The head of the request is larger than {MAX_HEAD_BYTES} bytes."
    return ServingError(ErrorKind.HEADERS_TOO_LARGE, message)


def _too_many() -> ServingError:
    message = "The server has too many connections at the moment."
    return ServingError(ErrorKind.UNAVAILABLE, message, code="no_connections", retry_after=1)
