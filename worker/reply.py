"""Events as an HTTP reply: a stream of SSE records, one JSON value, or one msgpack value when the client asks for it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Final

import structlog
from msgspec import Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from schemas.codec import MSGPACK_TYPE, REQUEST_ID_HEADER, SSE_TYPE, encode_frame, encode_json, encode_token_ids
from schemas.dialect import for_stock
from schemas.events import Done, Event
from schemas.openai.chat import ChatCompletion, ChatCompletionRequest
from schemas.openai.completions import Completion
from schemas.openai.errors import ErrorKind, ServingError
from schemas.openai.stream import ChatChunks, CompletionChunks, Fold, StreamHead, error_record, stream_head
from worker.answer import Request
from worker.disconnect import ClientGone, while_connected
from worker.service import Service

LAST_WORD_SECONDS: Final = 1.0
"""How long the error record that ends a stream may take to be written: its client may not be reading."""

Batches = AsyncGenerator[list[Event], None]

_log = structlog.get_logger(__name__)


class Call(Struct, frozen=True, kw_only=True):
    """A request that was read: its id, how many seconds it has, and whether its answer is to be msgpack.

    `named` says that the caller gave the id, as our gateways do; a leg from anybody else is a stock orchestrator's.
    """

    request: Request
    request_id: str
    seconds: float | None
    packed: bool
    named: bool = True

    @property
    def chat(self) -> bool:
        """Whether this is the chat endpoint."""
        return isinstance(self.request, ChatCompletionRequest)

    @property
    def endpoint(self) -> str:
        """The endpoint's name in metrics."""
        return "chat" if self.chat else "completions"


class Reply(Response):
    """The reply to a call. What goes wrong before its first byte is raised, and becomes a status; afterwards it is an error record.

    Nothing is sent before the first events are here, so a request that the engine refuses is a real 400.
    """

    def __init__(self, service: Service, call: Call) -> None:
        self.background = None
        self._service = service
        self._call = call
        self._head = stream_head(call.request_id, call.request, service.model)
        self._begun = False
        self._ended = False

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        # The client left: its work has been aborted, and nothing can be said.
        with suppress(ClientGone):
            await while_connected(receive, self._answer(send), lambda: self._ended)

    async def _answer(self, send: Send) -> None:
        try:
            await self._serve(send)
        except Exception as error:
            if not self._begun or self._ended:
                raise
            await self._end_broken(send, error)

    async def _serve(self, send: Send) -> None:
        call = self._call
        async with (
            self._service.run(call.endpoint, call.request_id, call.seconds) as run,
            aclosing(self._service.batches(run, call.request)) as batches,
        ):
            if call.request.stream is True:
                await self._stream(batches, send)
            else:
                await self._whole(batches, send)

    async def _stream(self, batches: Batches, send: Send) -> None:
        chunks = ChatChunks(self._head) if self._call.chat else CompletionChunks(self._head)
        async for batch in batches:
            records = b"".join([chunks.records(event) for event in batch])
            if not self._begun:
                await self._begin(send, SSE_TYPE, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
            if records:
                await self._write(send, records, last=isinstance(batch[-1], Done))

    async def _whole(self, batches: Batches, send: Send) -> None:
        reply = await whole_reply(batches, self._head, self._call)
        body = encode_frame(reply) if self._call.packed else encode_json(reply)
        length = (b"content-length", str(len(body)).encode("ascii"))
        await self._begin(send, MSGPACK_TYPE if self._call.packed else "application/json", length)
        await self._write(send, body, last=True)

    async def _write(self, send: Send, body: bytes, *, last: bool) -> None:
        self._ended = last
        await send({"type": "http.response.body", "body": body, "more_body": not last})

    async def _begin(self, send: Send, content_type: str, *headers: tuple[bytes, bytes]) -> None:
        self._begun = True
        own = [
            (b"content-type", content_type.encode("ascii")),
            (REQUEST_ID_HEADER.encode("ascii"), self._call.request_id.encode("ascii")),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": [*own, *headers]})

    async def _end_broken(self, send: Send, error: Exception) -> None:
        """End a stream that failed: with a record, and without `[DONE]`."""
        if not isinstance(error, ServingError):
            _log.error("reply.failed", request_id=self._call.request_id, reason=repr(error), exc_info=error)
            error = ServingError(ErrorKind.INTERNAL, "The server failed on this request.", code="internal_error")
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await self._write(send, error_record(error), last=True)


async def whole_reply(batches: Batches, head: StreamHead, call: Call) -> ChatCompletion | Completion:
    """The events of a call put together into its whole reply. Raises ServingError."""
    fold = Fold(head)
    async for batch in batches:
        for event in batch:
            fold.add(event)
    if not call.chat:
        return fold.completion()
    reply = _with_packed_ids(fold.chat(), call.request)
    if call.request.disaggregated_params and not call.named:
        for_stock(reply)
    return reply


def _with_packed_ids(reply: ChatCompletion, request: Request) -> ChatCompletion:
    """A context leg's prompt as base64, where that is asked for: chat has a field for it, completions do not."""
    params = request.disaggregated_params
    if params and params.return_prompt_token_ids_b64 is True and reply.prompt_token_ids:
        reply.prompt_token_ids_b64 = encode_token_ids(reply.prompt_token_ids)
        reply.prompt_token_ids = None
    return reply
