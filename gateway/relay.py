"""An answer on its way to the client, as ASGI messages.

Every stream ends with exactly one terminal: what the worker's stream ended with, or an error record written here.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import Final, Protocol

from starlette.types import Message, Send

from gateway.api.errors import headers_of
from gateway.cycle import Cycle
from gateway.links.base import Take
from gateway.metrics import Histogram
from schemas.codec import encode_json
from schemas.openai.errors import ServingError
from schemas.openai.stream import error_record

Headers = list[tuple[bytes, bytes]]

FAREWELL_SECONDS: Final = 1.0
"""How long a client that does not read is waited for when it is told that its stream failed."""

_NO_CONTENT: Final = 204
JSON_HEADER: Final = (b"content-type", b"application/json")
_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # A reverse proxy of the nginx kind must not collect what it relays.
]


class EventStream(Protocol):
    """An answer that is still being made: whole SSE events, ending with a terminal; never raises for a worker's failure.

    `failed` says, at the end, whether the terminal was an error record.
    """

    @property
    def failed(self) -> bool: ...

    async def read(self) -> bytes:
        """The next whole events; `b""` at the end."""
        ...

    async def pass_on(self, take: Take) -> None:
        """Give ordinary events to `take` as they come, until it answers False, or `read` has something else."""
        ...

    def close(self) -> None:
        """Abort what is not complete. A second call does nothing."""
        ...


class Reply:
    """Writes one response. `headers` go into whatever response it becomes; `status` is 0 until it has begun.

    Where the server is ours, its `cycle` is written to without the detours of ASGI.
    """

    __slots__ = ("_cycle", "_send", "ended", "failed", "first_byte", "headers", "status")

    def __init__(self, send: Send, headers: Headers, cycle: Cycle | None = None) -> None:
        self._send = send
        self._cycle = cycle
        self.headers = headers
        self.status = 0
        self.ended = False
        self.failed = False
        self.first_byte: float | None = None
        """When the first byte of a stream's body was sent, on the monotonic clock."""

    async def forward(self, message: Message) -> None:
        """An ASGI `send` for whoever makes the messages itself: adds our headers, and notes how far the response is."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self.headers]}
        elif not message.get("more_body", False):
            self.ended = True
        await self._send(message)

    async def whole(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = (JSON_HEADER,)) -> None:
        """A response whose body is here. JSON unless `headers` say otherwise."""
        self.status = status
        length = [] if status == _NO_CONTENT else [(b"content-length", b"%d" % len(body))]  # RFC 9110, 8.6
        all_headers = [*headers, *length, *self.headers]
        if self._cycle is not None and not self._cycle.write_paused:
            self.ended = True
            self._cycle.answer(status, all_headers, body)
            return
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})
        self.ended = True
        await self._send({"type": "http.response.body", "body": body})

    async def stream(self, events: EventStream, gaps: Histogram) -> None:
        """A stream, up to its end. A client that reads slowly slows the reading of `events` down.

        `gaps` is told the time that each event after the first took.
        """
        self.status = 200
        await self._send({"type": "http.response.start", "status": 200, "headers": [*_STREAM_HEADERS, *self.headers]})
        sent = _pace(gaps)
        while chunk := await events.read():
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            now = sent(chunk)
            if self.first_byte is None:
                self.first_byte = now
            if self._cycle is not None:
                await events.pass_on(_passing_on(self._cycle.write, sent))
        self.failed = events.failed
        self.ended = True
        await self._send({"type": "http.response.body", "body": b""})

    async def error(self, error: ServingError) -> None:
        """The failure: as a response of its own, or as the record that ends the stream; nothing after the end.

        Bounded, whatever the client does.
        """
        self.failed = True
        if self.ended:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                if self.status:
                    self.ended = True
                    await self._send({"type": "http.response.body", "body": error_record(error)})
                else:
                    await self.whole(error.status, encode_json(error.body()), headers_of(error))


def _pace(gaps: Histogram) -> Callable[[bytes], float]:
    """What is to be told of events when they were sent, and answers the time (monotonic).

    The histogram hears how long each event after the first took.
    """
    before = 0.0

    def sent(events: bytes) -> float:
        nonlocal before
        now = monotonic()
        if before:
            # Two line ends an event: counting blank lines takes ten times as long, and workers write one line an event.
            gaps.observe_each(now - before, events.count(b"\n") // 2)
        before = now
        return now

    return sent


def _passing_on(write: Take, sent: Callable[[bytes], float]) -> Take:
    """What is done for each event of a stream that flows: nothing that could wait."""

    def take(events: bytes) -> bool:
        sent(events)
        return write(events)

    return take
