"""A channel's answers in the shape they would have over HTTP: JSON bodies, and SSE made of events."""

import re
from collections.abc import Mapping
from typing import Final
from uuid import uuid4

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.links.base import BadReply, Reply, Take
from gateway.links.errors import lift_error
from gateway.links.event_stream import EventStream
from schemas.codec import MALFORMED, MSGPACK_TYPE, REQUEST_ID_HEADER, SSE_TYPE, encode_json
from schemas.events import Event, Failed
from schemas.openai.errors import ServingError
from schemas.openai.options import StreamOptions
from schemas.openai.stream import ChatChunks, CompletionChunks, StreamHead, error_of

JSON_TYPE: Final = "application/json"
Chunks = ChatChunks | CompletionChunks

_CHUNKS: Final[Mapping[str, tuple[type[Chunks], str]]] = {
    "/v1/chat/completions": (ChatChunks, "chatcmpl-"),
    "/v1/completions": (CompletionChunks, "cmpl-"),
}
_FULL_STOP: Final = re.compile(r"\.0$")


class _Asked(Struct):
    """The least of a request that its records depend on."""

    model: str = ""
    stream_options: StreamOptions | None | UnsetType = UNSET


_asked = msgspec.msgpack.Decoder(_Asked)
# Untyped on purpose: a field that a newer worker has reaches the client, as it would over HTTP.
_any = msgspec.msgpack.Decoder()


def chunks_for(operation: str, frame: bytes, headers: Mapping[str, str]) -> Chunks:
    """What makes the records of a stream: the worker would make the same of the same request. Raises BadReply if it has none."""
    if operation not in _CHUNKS:
        raise BadReply(f"The worker answered {operation} with events.")
    kind, prefix = _CHUNKS[operation]
    try:
        asked = _asked.decode(frame)
    except MALFORMED as error:
        raise BadReply("The worker answered with events to a request that is malformed.") from error
    options = asked.stream_options if isinstance(asked.stream_options, StreamOptions) else StreamOptions()
    return kind(
        StreamHead(
            id=prefix + (headers.get(REQUEST_ID_HEADER) or uuid4().hex),
            model=asked.model,
            include_usage=options.include_usage is True,
            continuous_usage=options.continuous_usage_stats is True,
        )
    )


def as_json(reply: Reply) -> Reply:
    """The reply with its msgpack body as JSON. Raises BadReply if the body is not one value."""
    if not reply.headers.get("content-type", "").startswith(MSGPACK_TYPE):
        return reply
    try:
        body = encode_json(_any.decode(reply.body)) if reply.body else b""
    except MALFORMED as error:
        raise BadReply("The worker's reply is not a msgpack value.") from error
    return Reply(reply.status, {**reply.headers, "content-type": JSON_TYPE}, body)


def refusal(error: ServingError) -> Reply:
    """A failure as the reply it would be over HTTP."""
    headers = {"content-type": JSON_TYPE}
    if error.retry_after is not None:
        headers["retry-after"] = _FULL_STOP.sub("", str(error.retry_after))
    return Reply(error.status, headers, encode_json(error.body()))


class RecordStream:
    """A `ReplyStream` whose events become SSE records here. `first` are the events that were read to know that it is one."""

    def __init__(self, events: EventStream, first: list[Event], chunks: Chunks) -> None:
        self.status = 200
        self.headers: Mapping[str, str] = {"content-type": f"{SSE_TYPE}; charset=utf-8"}
        self._events = events
        self._first = first
        self._chunks = chunks
        self.failed = False
        """Whether the stream ended with an error record."""

    async def read(self) -> bytes:
        """The records of all events that are here, whole ones; `b""` after the terminal."""
        events, self._first = self._first, []
        while events := events or await self._events.read():
            if records := self._records(events):
                return records
            events = []
        return b""

    async def pass_on(self, take: Take) -> None:
        """Give records to `take` as their events come; see `ReplyStream`."""
        if self._first:
            return

        def taker(events: list[Event]) -> bool:
            records = b"".join(map(self._chunks.records, events))
            return take(records) if records else True

        await self._events.pass_on(taker)

    async def body(self) -> bytes:
        """All that is left."""
        pieces: list[bytes] = []
        while piece := await self.read():
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Cancel the request if it is not complete."""
        self._events.close()

    def _records(self, events: list[Event]) -> bytes:
        last = events[-1]
        if isinstance(last, Failed):
            self.failed = True
            return b"".join([*map(self._chunks.records, events[:-1]), _cleaned(last)])
        return b"".join(map(self._chunks.records, events))


def _cleaned(failed: Failed) -> bytes:
    """The record of a failure. What a worker says of it is for clients only once it was cleaned, as over HTTP."""
    error = error_of(failed)
    return b"data: %b\n\n" % encode_json(lift_error(encode_json(error.body()), error.status))


class WholeReplyStream:
    """A `ReplyStream` of a reply that is no stream."""

    def __init__(self, reply: Reply) -> None:
        self.status = reply.status
        self.headers = reply.headers
        self.failed = False
        self._body = reply.body

    async def read(self) -> bytes:
        """The whole body, once."""
        body, self._body = self._body, b""
        return body

    async def pass_on(self, take: Take) -> None:
        """It has no events."""

    async def body(self) -> bytes:
        """The whole body."""
        return await self.read()

    def close(self) -> None:
        """Nothing is open."""
