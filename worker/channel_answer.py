"""One request over the channel: an OPEN frame in, events or one whole reply out. Knows no gRPC."""

import math
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol

import structlog

from schemas.abort import AbortRequest
from schemas.codec import MAX_REPLY_BYTES, MSGPACK_TYPE, DecodeFailure, encode_frame, guarded, msgpack_decoder
from schemas.events import Done, Event, Failed
from schemas.openai.errors import ErrorKind, ServingError
from schemas.openai.stream import stream_head
from schemas.pb.channel_pb2 import REPLY, Frame
from worker.operations import CHAT, COMPLETIONS, Operations
from worker.reply import Call, whole_reply

ABORT: Final = "/_packrelay/abort"

_log = structlog.get_logger(__name__)


class Sink(Protocol):
    """Where an answer goes."""

    async def events(self, events: list[Event], /) -> None:
        """The next events of the request; waits while its reader is behind."""
        ...

    async def reply(self, reply: Frame, /) -> None:
        """The whole reply."""
        ...


_abort = msgpack_decoder(AbortRequest)


class Answering:
    """Answers OPEN frames. `max_reply_bytes` bounds a whole reply: a larger one becomes a 413."""

    def __init__(self, operations: Operations, max_reply_bytes: int = MAX_REPLY_BYTES) -> None:
        self.service = operations.service
        self._operations = operations
        self._max_reply_bytes = max_reply_bytes
        self._side_paths: Mapping[str, Callable[[bytes], Any]] = {
            "/health": self._health,
            "/v1/models": lambda _payload: operations.models(),
            "/server_info": lambda _payload: operations.server_info(),
            ABORT: self._abort,
        }

    async def answer(self, frame: Frame, sink: Sink, *, events: bool = True) -> None:
        """Answer one request: events up to a terminal, or a reply. Whatever is wrong is told, never raised; cancelling aborts it.

        With `events` false a request for a stream is refused.
        """
        telling = _Telling(sink, frame.stream)
        try:
            await self._serve(frame, telling, events=events)
        except ServingError as error:
            self.service.counters.decode_failures += isinstance(error, DecodeFailure)
            await telling.failed(error)
        except Exception as error:  # noqa: BLE001 - the request fails, the channel goes on
            _log.error("channel.request_failed", operation=frame.operation, reason=repr(error), exc_info=error)
            message = "The server failed on this request."
            await telling.failed(ServingError(ErrorKind.INTERNAL, message, code="internal_error"))

    async def _serve(self, frame: Frame, telling: "_Telling", *, events: bool) -> None:
        headers = {name.lower(): value for name, value in frame.headers.items()}
        self._operations.check_key(headers)
        if frame.operation in self._side_paths:
            await telling.reply(self._packed(self._side_paths[frame.operation](frame.payload)))
            return
        if frame.operation not in {CHAT, COMPLETIONS}:
            raise ServingError(ErrorKind.NOT_FOUND, "There is nothing at this path.")
        call = self._operations.read(frame.operation, headers, frame.payload)
        if call.request.stream is True and not events:
            message = "A stream is not a whole reply: use Generate or Exchange for it."
            raise ServingError(ErrorKind.INVALID, message, param="stream")
        await self._generate(call, telling)

    async def _generate(self, call: Call, telling: "_Telling") -> None:
        service = self.service
        async with (
            service.run(call.endpoint, call.request_id, call.seconds) as run,
            aclosing(service.batches(run, call.request)) as batches,
        ):
            if call.request.stream is True:
                async for batch in batches:
                    await telling.events(batch)
                return
            head = stream_head(call.request_id, call.request, service.model)
            reply = self._packed(await whole_reply(batches, head, call))
        await telling.reply(reply)

    def _packed(self, value: Any) -> bytes:
        """Any: the Struct of whichever reply it is."""
        packed = encode_frame(value)
        if len(packed) > self._max_reply_bytes:
            message = f"The reply is larger than {self._max_reply_bytes} bytes."
            raise ServingError(ErrorKind.TOO_LARGE, message, code="reply_too_large")
        return packed

    def _health(self, _payload: bytes) -> dict[str, str]:
        self.service.check()
        return {}

    def _abort(self, payload: bytes) -> dict[str, str]:
        request: AbortRequest = guarded(_abort.decode, payload)
        self.service.abort(request.request_id)
        return {}


class _Telling:
    """What one request has been told: events or a reply, and one last word."""

    def __init__(self, sink: Sink, stream: int) -> None:
        self._sink = sink
        self._stream = stream
        self._begun = False
        self._ended = False

    async def events(self, events: list[Event]) -> None:
        self._begun = True
        self._ended = self._ended or isinstance(events[-1], Done)
        await self._sink.events(events)

    async def reply(self, payload: bytes) -> None:
        self._ended = True
        await self._sink.reply(reply_frame(self._stream, 200, payload))

    async def failed(self, error: ServingError) -> None:
        if self._ended:
            return
        self._ended = True
        if self._begun:
            failed = Failed(kind=error.kind, message=error.message, param=error.param, code=error.code)
            await self._sink.events([failed])
        else:
            await self._sink.reply(error_frame(self._stream, error))


def reply_frame(stream: int, status: int, payload: bytes, headers: Mapping[str, str] | None = None) -> Frame:
    """A whole reply."""
    told = {"status": str(status), "content-type": MSGPACK_TYPE, **(headers or {})}
    return Frame(stream=stream, kind=REPLY, headers=told, payload=payload)


def error_frame(stream: int, error: ServingError) -> Frame:
    """A failure as a whole reply."""
    headers = {} if error.retry_after is None else {"retry-after": str(math.ceil(error.retry_after))}
    return reply_frame(stream, error.status, encode_frame(error.body()), headers)
