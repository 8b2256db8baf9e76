"""The worker's HTTP side: tagged msgpack or JSON in; JSON, SSE or msgpack out. Every error is the OpenAI object.

    POST /v1/chat/completions  POST /v1/completions  GET /v1/models  GET /v1/models/{id}
    GET /health  GET /health_generate  GET /version  GET /server_info  GET /metrics
    POST /_packrelay/abort  GET /_packrelay/handoff/{handle}

Who may call is the network's matter; only prefill states, and requests that make this worker fetch one, are asked for a signature.
"""

import re
import time
import uuid
from importlib.metadata import version
from typing import Any, Final, Self

from fastapi import FastAPI
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.responses import Response

from schemas.abort import AbortRequest
from schemas.codec import (
    DEADLINE_HEADER,
    DISAGG_AUTH_HEADER,
    FRAMES_VERSION,
    MSGPACK_TYPE,
    REQUEST_ID_HEADER,
    encode_json,
    read_chat_frame,
    read_chat_json,
    read_completion_frame,
    read_completion_json,
)
from schemas.openai.errors import ErrorKind, ServingError, invalid
from schemas.openai.models import Model, ModelList
from schemas.server_info import PackrelayInfo, ServerInfo
from worker import error_replies
from worker.answer import Request
from worker.config import WorkerConfig
from worker.disconnect import ClientGone, while_connected
from worker.engines.base import Capability, Leg
from worker.handoff import AUTH_HEADER, STATE_HEADER, WAIT_HEADER, check_fetch, check_generation
from worker.legs import leg_of, params_of
from worker.metrics import CONTENT_TYPE, WorkerCollector, exposition
from worker.msgpack_route import MsgpackRequest, MsgpackRoute
from worker.reply import Call, Reply
from worker.service import Service

MAX_SECONDS: Final = 86400.0

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,15}")


class Front(Struct, frozen=True, kw_only=True):
    """What the HTTP side knows beside the service: the role it publishes, the shared key, the largest body in bytes."""

    role: str = "both"
    internal_key: str | None = None
    max_body_bytes: int

    @classmethod
    def of(cls, config: WorkerConfig) -> Self:
        """The part of the configuration that is the HTTP side's."""
        return cls(role=config.role, internal_key=config.internal_key, max_body_bytes=config.max_body_bytes)


def create_app(service: Service, front: Front) -> FastAPI:
    """The app of one service. The engine is started and closed by whoever made it."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.router.route_class = MsgpackRoute
    app.state.max_body_bytes = front.max_body_bytes
    error_replies.install(app, service.counters)
    _add_generation(app, service, front)
    _add_descriptions(app, service, front)
    _add_health(app, service)
    _add_own_paths(app, service, front)
    return app


def _json(value: Any) -> Response:
    """Any: a Struct, or a map for the few bodies that are no type of ours."""
    return Response(encode_json(value), media_type="application/json")


# --- the work ---


def _add_generation(app: FastAPI, service: Service, front: Front) -> None:
    @app.post("/v1/chat/completions")
    async def chat_completions(request: MsgpackRequest) -> Response:
        return accepted(request.headers, await request.read(read_chat_json, read_chat_frame))

    @app.post("/v1/completions")
    async def completions(request: MsgpackRequest) -> Response:
        return accepted(request.headers, await request.read(read_completion_json, read_completion_frame))

    def accepted(headers: Headers, request: Request) -> Response:
        service.check_model(request.model)
        params = params_of(request)
        if params is not None and leg_of(params) is Leg.GENERATION:
            check_generation(front.internal_key, headers.get(DISAGG_AUTH_HEADER), params)
        return Reply(service, _call(headers, request))


def _call(headers: Headers, request: Request) -> Call:
    given = headers.get(REQUEST_ID_HEADER, "")
    milliseconds = _milliseconds(headers, DEADLINE_HEADER)
    return Call(
        request=request,
        request_id=given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex,
        seconds=None if milliseconds is None else min(max(milliseconds / 1000, 0.0), MAX_SECONDS),
        packed=MSGPACK_TYPE in headers.get("accept", ""),
        named=bool(given),
    )


def _milliseconds(headers: Headers, name: str) -> int | None:
    """A header's whole number of milliseconds, None without one."""
    text = headers.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise invalid(f"The header {name} takes a whole number of milliseconds.")
    return int(text)


# --- what this worker is ---


def _add_descriptions(app: FastAPI, service: Service, front: Front) -> None:
    created = int(time.time())

    def model() -> Model:
        return Model(id=service.model, created=created, max_model_len=service.facts.context_length)

    @app.get("/v1/models")
    async def models() -> Response:
        return _json(ModelList(data=[model()]))

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        service.check_model(name)
        return _json(model())

    @app.get("/version")
    async def own_version() -> Response:
        return _json({"version": version("packrelay")})

    @app.get("/server_info")
    async def server_info() -> Response:
        return _json(_server_info(service, front))


def _server_info(service: Service, front: Front) -> ServerInfo:
    facts = service.facts
    hands_over = Capability.HANDOFF in facts.capabilities
    ours = PackrelayInfo(
        frames=FRAMES_VERSION,
        deferred=True,
        grpc_port=None,
        model=service.model,
        engine=facts.engine,
        version=version("packrelay"),
        role=front.role,
        max_model_len=facts.context_length,
    )
    return ServerInfo(
        # A list, as stock workers have it: one address per rank, the orchestrator takes the first.
        disaggregated_params={"ctx_info_endpoint": [service.handoffs.base_url]} if hands_over else {},
        max_batch_size=facts.max_batch_size,
        packrelay=ours,
    )


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


# --- our own paths ---


def _add_own_paths(app: FastAPI, service: Service, front: Front) -> None:
    @app.post("/_packrelay/abort")
    async def abort(request: MsgpackRequest) -> Response:
        service.abort((await request.read(AbortRequest)).request_id)
        return _json({})

    @app.get("/_packrelay/handoff/{handle}")
    async def handoff(handle: str, request: MsgpackRequest) -> Response:
        check_fetch(front.internal_key, request.headers.get(AUTH_HEADER), handle)
        wait = (_milliseconds(request.headers, WAIT_HEADER) or 0) / 1000
        try:
            kept = await while_connected(request.receive, service.handoffs.store.take(handle, wait))
        except ClientGone as error:
            raise ServingError(ErrorKind.CANCELLED, "The fetch was given up.") from error
        if kept is None:
            message = "There is no such prefill state: it was never made, has expired, or was fetched before."
            raise ServingError(ErrorKind.NOT_FOUND, message, code="handoff_lost")
        service.counters.handoffs_sent += 1
        return Response(kept.data, headers={STATE_HEADER: kept.description}, media_type="application/octet-stream")
