"""The worker's HTTP side: tagged msgpack or JSON in; JSON, SSE or msgpack out. Every error is the OpenAI object.

    POST /v1/chat/completions  POST /v1/completions  GET /v1/models  GET /v1/models/{id}
    GET /health  GET /health_generate  GET /version  GET /server_info  GET /metrics  POST /kv_cache_events
    POST /_packrelay/abort  GET /_packrelay/handoff/{handle}  GET /_packrelay/iteration_stats

Who may give it work: everybody who reaches it, or with `--require-key` holders of the internal key (worker/key_check.py). Where a
key is set, prefill states and requests that make this worker fetch one are asked for a signature in any case.
"""

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from schemas.abort import AbortRequest
from schemas.codec import encode_json, read_chat_frame, read_chat_json, read_completion_frame, read_completion_json
from schemas.openai.errors import ErrorKind, ServingError
from worker import error_replies
from worker.disconnect import ClientGone, while_connected
from worker.handoff import AUTH_HEADER, STATE_HEADER, WAIT_HEADER, check_fetch
from worker.key_check import KeyCheck
from worker.metrics import CONTENT_TYPE, WorkerCollector, exposition
from worker.msgpack_route import MsgpackRequest, MsgpackRoute
from worker.operations import CHAT, COMPLETIONS, Front, Operations, milliseconds_of
from worker.reply import Reply
from worker.service import Service


def create_app(service: Service, front: Front) -> FastAPI:
    """The app of one service. The engine is started and closed by whoever made it."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.router.route_class = MsgpackRoute
    app.state.max_body_bytes = front.max_body_bytes
    if front.internal_key is not None and front.require_key:
        app.add_middleware(KeyCheck, key=front.internal_key)
    operations = Operations(service, front)
    error_replies.install(app, service.counters)
    _add_generation(app, operations)
    _add_descriptions(app, operations)
    _add_health(app, service)
    _add_engine(app, service)
    _add_own_paths(app, service, front)
    return app


def _json(value: Any) -> Response:
    """Any: a Struct, or a map for the few bodies that are no type of ours."""
    return Response(encode_json(value), media_type="application/json")


# --- the work ---


def _add_generation(app: FastAPI, operations: Operations) -> None:
    @app.post(CHAT)
    async def chat_completions(request: MsgpackRequest) -> Response:
        call = operations.accept(request.headers, await request.read(read_chat_json, read_chat_frame))
        return Reply(operations.service, call)

    @app.post(COMPLETIONS)
    async def completions(request: MsgpackRequest) -> Response:
        call = operations.accept(request.headers, await request.read(read_completion_json, read_completion_frame))
        return Reply(operations.service, call)


# --- what this worker is ---


def _add_descriptions(app: FastAPI, operations: Operations) -> None:
    @app.get("/v1/models")
    async def models() -> Response:
        return _json(operations.models())

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        operations.service.check_model(name)
        return _json(operations.model())

    @app.get("/version")
    async def own_version() -> Response:
        return _json({"version": version("packrelay")})

    @app.get("/server_info")
    async def server_info() -> Response:
        return _json(operations.server_info())


# --- how it is ---


def _add_health(app: FastAPI, service: Service) -> None:
    store = service.handoffs.store
    collector = WorkerCollector(service.counters, lambda: service.in_flight, lambda: (len(store), store.size))

    @app.get("/health")
    async def health() -> Response:
        service.check()
        return Response()

    @app.get("/health_generate")
    async def health_generate() -> Response:
        service.check()
        await service.probe()
        return Response()

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(exposition(collector), headers={"content-type": CONTENT_TYPE})


# --- what the engine tells ---


def _add_engine(app: FastAPI, service: Service) -> None:
    @app.post("/kv_cache_events")
    async def cache_events() -> Response:
        return _json(await service.told_by_engine(service.engine.cache_events()))

    @app.get("/_packrelay/iteration_stats")
    async def iteration_stats() -> Response:
        return _json(await service.told_by_engine(service.engine.iteration_stats()))


# --- our own paths ---


def _add_own_paths(app: FastAPI, service: Service, front: Front) -> None:
    @app.post("/_packrelay/abort")
    async def abort(request: MsgpackRequest) -> Response:
        service.abort((await request.read(AbortRequest)).request_id)
        return _json({})

    @app.get("/_packrelay/handoff/{handle}")
    async def handoff(handle: str, request: MsgpackRequest) -> Response:
        check_fetch(front.internal_key, request.headers.get(AUTH_HEADER), handle)
        wait = (milliseconds_of(request.headers, WAIT_HEADER) or 0) / 1000
        try:
            kept = await while_connected(request.receive, service.handoffs.store.take(handle, wait))
        except ClientGone as error:
            raise ServingError(ErrorKind.CANCELLED, "The fetch was given up.") from error
        if kept is None:
            message = "There is no such prefill state: it was never made, has expired, or was fetched before."
            raise ServingError(ErrorKind.NOT_FOUND, message, code="handoff_lost")
        service.counters.handoffs_sent += 1
        return Response(kept.data, headers={STATE_HEADER: kept.description}, media_type="application/octet-stream")
