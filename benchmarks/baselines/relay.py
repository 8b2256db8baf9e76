"""A relay as one writes it with the usual parts; `encode` makes a worker's body, and `headers` go with it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse

from benchmarks.baselines.models import ChatRequest, ChatResponse, HandOff

PATH = "/v1/chat/completions"


class Relay:
    """Relays to one generation worker, after one context worker if there is one."""

    def __init__(
        self,
        encode: Callable[[dict[str, Any]], bytes],
        headers: Mapping[str, str],
        generation: str,
        context: str | None,
    ) -> None:
        self._encode = encode
        self._headers = {"content-type": "application/json", **headers}
        self._generation = generation
        self._context = context
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        """One session for all requests."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:
            self._session = session
            yield

    async def chat(self, request: ChatRequest) -> Response:
        """One request: its context leg if there is one, then the leg whose reply is the client's."""
        if self._context is not None:
            await self._run_context(request)
        reply = await self._post(self._generation, request)
        if request.stream:
            return StreamingResponse(self._relayed(reply), media_type="text/event-stream")
        async with reply:
            answer = ChatResponse.model_validate(await reply.json())
        return JSONResponse(answer.model_dump(exclude_unset=True))

    async def _run_context(self, request: ChatRequest) -> None:
        asked = request.model_copy(update={"stream": False})
        asked.disaggregated_params = HandOff(request_type="context_only", disagg_request_id=7)
        async with await self._post(self._context or "", asked) as reply:
            packed = "msgpack" in reply.headers.get("content-type", "")
            read = msgspec.msgpack.decode(await reply.read()) if packed else await reply.json()
        context = ChatResponse.model_validate(read)
        request.disaggregated_params = context.choices[0].disaggregated_params
        if request.disaggregated_params is not None:
            request.disaggregated_params.request_type = "generation_only"
        request.prompt_token_ids = context.prompt_token_ids
        request.prompt_token_ids_b64 = context.prompt_token_ids_b64

    async def _post(self, worker: str, request: ChatRequest) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("The relay has not started.")
        body = self._encode(request.model_dump(mode="json", exclude_unset=True))
        return await self._session.post(worker + PATH, data=body, headers=self._headers)

    async def _relayed(self, reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        async with reply:
            async for piece in reply.content.iter_any():
                yield piece


def serve(encode: Callable[[dict[str, Any]], bytes], headers: Mapping[str, str], arguments: list[str]) -> None:
    """Serve: the port, the generation worker's URL, and perhaps the context worker's."""
    port, generation, *contexts = arguments
    relay = Relay(encode, headers, generation, contexts[0] if contexts else None)
    app = FastAPI(lifespan=relay.lifespan)
    app.post(PATH, response_model=None)(relay.chat)
    app.get("/health")(_health)
    settings = uvicorn.Config(app, host="127.0.0.1", port=int(port), loop="uvloop", http="httptools", log_level="error")
    server = uvicorn.Server(settings)
    with asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:
        runner.run(server.serve())


async def _health() -> dict[str, str]:
    return {"status": "ok"}
