"""The HTTP side of a stock worker."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from tests.stock import disagg, replies
from tests.stock.behaviour import Behaviour, Refusal
from tests.stock.connections import Connections
from tests.stock.legs import Leg, Legs
from tests.stock.protocol import ChatRequest, CompletionRequest, Generation
from tests.stock.recording import Recorded
from tests.stock.streaming import METRICS, Stream

T = TypeVar("T")


class ClientLeft(Exception):
    """There is nobody to answer any more."""


class StockApp:
    """The endpoints of one worker."""

    def __init__(self, legs: Legs, model: str, connections: Connections) -> None:
        self.legs = legs
        self.model = model
        self.requests: list[Recorded] = []
        self._connections = connections
        self._served = 0

    @property
    def _behaviour(self) -> Behaviour:
        return self.legs.behaviour

    def asgi(self) -> FastAPI:
        """The application."""
        app = FastAPI(openapi_url=None)
        app.add_api_route("/v1/chat/completions", self.chat, methods=["POST"], response_model=None)
        app.add_api_route("/v1/completions", self.completions, methods=["POST"], response_model=None)
        for path in ("/health", "/health_generate"):
            app.add_api_route(path, self.health, methods=["GET"], response_model=None)
        for path, body in self._facts().items():
            app.add_api_route(path, _constant(body), methods=["GET"], response_model=None)
        app.add_api_route("/kv_cache_events", _constant([]), methods=["POST"], response_model=None)
        app.add_api_route("/prometheus/metrics", _metrics, methods=["GET"], response_model=None)
        return app

    def _facts(self) -> dict[str, Any]:
        card = {"id": self.model, "object": "model", "created": 1, "owned_by": "tensorrt_llm"}
        return {
            "/version": {"version": self.legs.version.number},
            "/v1/models": {"object": "list", "data": [card]},
            "/server_info": {"disaggregated_params": self.legs.server_keys, "max_batch_size": 64},
            "/metrics": [],
            "/steady_clock_offset": {"receive_ts": 1.0, "transmit_ts": 1.0},
        }

    async def health(self) -> Response:
        """Healthy or not; the reason is text."""
        if self._behaviour.healthy:
            return Response()
        return Response("LLM is unavailable", 503, media_type="text/plain")

    async def chat(self, http: Request) -> Response:
        """Chat completions."""
        return await self._serve(http, ChatRequest)

    async def completions(self, http: Request) -> Response:
        """Completions."""
        return await self._serve(http, CompletionRequest)

    async def _serve(self, http: Request, type_: type[Generation]) -> Response:
        headers = {name.lower(): value for name, value in http.headers.items()}
        recorded = Recorded(http.method, http.url.path, headers, await http.body())
        self.requests.append(recorded)
        try:
            return await _unless_gone(self._reply(http, recorded, type_), http)
        except ClientLeft:
            recorded.gone.set()
            return Response()

    async def _reply(self, http: Request, recorded: Recorded, type_: type[Generation]) -> Response:
        if self._behaviour.vanish_before_reply:
            self._connections.abort(http)
        if self._behaviour.hold_before_reply:
            await self._behaviour.resume.wait()
        if refusal := self._next_refusal():
            return _refused(refusal)
        try:
            version = self.legs.version
            body = recorded.decoded() if version.msgpack else json.loads(recorded.body)
            request = type_.model_validate(version.read(body))
        except ValueError as error:  # msgpack's and json's errors and pydantic's are all of this kind.
            return _refused(Refusal.validation(str(error)))
        try:
            return await self._answer(http, recorded, request)
        except ValueError as error:
            return _refused(Refusal.internal(str(error)))

    def _next_refusal(self) -> Refusal | None:
        behaviour = self._behaviour
        if behaviour.refusal is None or behaviour.refusals_left == 0:
            return None
        if behaviour.refusals_left is not None:
            behaviour.refusals_left -= 1
        return behaviour.refusal

    async def _answer(self, http: Request, recorded: Recorded, request: Generation) -> Response:
        leg = await self.legs.leg(request, recorded)
        self._served += 1
        head = replies.Head(
            ("chatcmpl-" if isinstance(request, ChatRequest) else "cmpl-") + str(self._served), self.model
        )
        metrics = self._behaviour.perf_metrics or recorded.headers.get("x-trtllm-return-metrics") == "1"
        if not request.stream:
            await asyncio.sleep(self._behaviour.token_delay * max(len(choice.tokens) for choice in leg.choices))
            return JSONResponse(_whole(request, leg, head), headers=METRICS if metrics else None)
        stream = Stream(request, leg, head, self._behaviour, metrics, lambda: self._connections.abort(http))
        body = _noticing(stream.records(), recorded)
        return StreamingResponse(body, headers={"content-type": self._behaviour.stream_type})


def _whole(request: Generation, leg: Leg, head: replies.Head) -> dict[str, Any]:
    choices = []
    for index, made in enumerate(leg.choices):
        if isinstance(request, ChatRequest):
            choices.append(replies.chat_choice(request, index, made, leg.params))
        elif isinstance(request, CompletionRequest):
            choices.append(replies.completion_choice(request, index, made, leg.params))
    ids = disagg.prompt_ids(request, leg.choices[0].prompt) if leg.params else {}
    return replies.whole(request, head, choices, leg.usage(), **ids)


async def _noticing(records: AsyncGenerator[bytes, None], recorded: Recorded) -> AsyncGenerator[bytes, None]:
    """The records; a client that leaves before the last is recorded."""
    try:
        async for record in records:
            yield record
    except (asyncio.CancelledError, GeneratorExit):
        recorded.gone.set()
        raise


async def _unless_gone(work: Awaitable[T], http: Request) -> T:
    """The result of the work, given up when the client leaves."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(http.receive())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return await working
        raise ClientLeft
    finally:
        working.cancel()
        leaving.cancel()


def _refused(refusal: Refusal) -> Response:
    headers = {"content-type": refusal.content_type, **refusal.headers}
    return Response(refusal.body, refusal.status, headers)


def _constant(body: Any) -> Any:
    async def reply() -> Response:
        return Response(json.dumps(body), media_type="application/json")

    return reply


async def _metrics() -> Response:
    return Response("# HELP trtllm_requests Requests.\n", media_type="text/plain")
