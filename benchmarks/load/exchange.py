"""One connection of the load generator: sends bytes made beforehand, reads one reply at a time, checks it when it is complete."""

import asyncio
import re
from collections.abc import Callable
from time import monotonic, monotonic_ns
from typing import Final

from msgspec import Struct

from benchmarks.stub import STAMP

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNK_SIZE: Final = re.compile(rb"([0-9a-fA-F]+)[^\r\n]*\r\n")
_STAMPED: Final = re.compile(re.escape(STAMP) + rb"(\d{19})")
_LAST_CHUNK: Final = b"0\r\n\r\n"
_EVENT: Final = b"data: "
_DONE: Final = b"data: [DONE]"


class Outcome(Struct):
    """One request as it was answered. Times are on the monotonic clock; `arrivals` are (when, how many events) of a stream."""

    ok: bool
    sent: float
    first: float
    ended: float
    arrivals: list[tuple[float, int]]


class Exchange(asyncio.Protocol):
    """A connection. `on_end` is told how each request ended; `on_delay`, if given, how old each stamped event was, in seconds."""

    def __init__(
        self, on_end: Callable[["Exchange", Outcome], None], on_delay: Callable[[float], None] | None = None
    ) -> None:
        self._on_end = on_end
        self._on_delay = on_delay
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._missing = -1  # Bytes of a body of known length; -1 while that is not known.
        self._chunked = False
        self._busy = False
        self._events = 0
        self._outcome = Outcome(ok=False, sent=0.0, first=0.0, ended=0.0, arrivals=[])

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, events: int = 0, scheduled: float | None = None) -> None:
        """Send a request whose reply must have so many events (0: must be a whole body; less: a stream of any number).

        Times count from `scheduled`, or now.
        """
        sent = monotonic() if scheduled is None else scheduled
        self._outcome = Outcome(ok=False, sent=sent, first=0.0, ended=0.0, arrivals=[])
        self._events = events
        self._pieces = []
        self._missing = -1
        self._chunked = False
        self._busy = True
        if self._transport is not None:
            self._transport.write(request)

    def close(self) -> None:
        """Leave, whatever is under way; nobody is told."""
        self._busy = False
        if self._transport is not None:
            self._transport.abort()

    # --- the transport's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's do not derive from asyncio's

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  the contract's argument
        self._transport = None
        if self._busy:
            self._end(ok=False)

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            return
        if self._missing < 0 and not self._chunked:
            data = self._head(data)
            if not data:
                return
        if self._events:
            self._stream_data(data)
        else:
            self._pieces.append(data)
            self._outcome.first = self._outcome.first or monotonic()
        self._missing -= 0 if self._chunked else len(data)
        if self._missing == 0 or (self._chunked and data.endswith(_LAST_CHUNK)):
            self._end(ok=self._is_right())

    def _head(self, data: bytes) -> bytes:
        """Read the head; answers what of the body came with it."""
        self._pieces.append(data)
        held = b"".join(self._pieces)
        end = held.find(b"\r\n\r\n")
        if end < 0:
            return b""
        head = held[: end + 2]
        self._pieces = []
        length = _LENGTH.search(head)
        self._chunked = length is None
        self._missing = int(length[1]) if length else -1
        self._outcome.ok = head.startswith(b"HTTP/1.1 200")
        return held[end + 4 :]

    def _stream_data(self, data: bytes) -> None:
        now = monotonic()
        outcome = self._outcome
        if self._on_delay is not None:
            arrived = monotonic_ns()
            for stamp in _STAMPED.findall(data):
                self._on_delay((arrived - int(stamp)) / 1e9)
        else:
            self._pieces.append(data)
        outcome.first = outcome.first or now
        outcome.arrivals.append((now, data.count(_EVENT) or 1))

    def _is_right(self) -> bool:
        if not self._outcome.ok or not self._events or self._on_delay is not None:
            return self._outcome.ok
        body = b"".join(self._pieces)
        if self._events < 0:
            return _DONE in dechunked(body)
        wanted = self._events + 1  # The terminal.
        if body.count(_EVENT) != wanted or _DONE not in body:
            body = dechunked(body)
        return body.count(_EVENT) == wanted and _DONE in body

    def _end(self, *, ok: bool) -> None:
        self._busy = False
        outcome = self._outcome
        outcome.ok = ok
        outcome.ended = monotonic()
        self._on_end(self, outcome)


def dechunked(body: bytes) -> bytes:
    """A chunked body without its framing; what comes after a malformed chunk is left out."""
    pieces = []
    start = 0
    while size := _CHUNK_SIZE.match(body, start):
        length = int(size[1], 16)
        pieces.append(body[size.end() : size.end() + length])
        start = size.end() + length + 2
    return b"".join(pieces)
