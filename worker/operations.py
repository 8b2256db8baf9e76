"""What can be asked of a worker, whatever the transport: who may ask, how a request is read, what the worker is."""

import hmac
import re
import time
import uuid
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Final, Self

from msgspec import Struct

from schemas.codec import (
    DEADLINE_HEADER,
    DISAGG_AUTH_HEADER,
    FRAMES_VERSION,
    MSGPACK_HEADER,
    MSGPACK_HEADER_VALUE,
    MSGPACK_TYPE,
    REQUEST_ID_HEADER,
    WORKER_AUTH_HEADER,
    read_chat_frame,
    read_chat_json,
    read_completion_frame,
    read_completion_json,
)
from schemas.disagg import worker_signature
from schemas.openai.errors import ErrorKind, ServingError, invalid
from schemas.openai.models import Model, ModelList
from schemas.server_info import PackrelayInfo, ServerInfo
from worker.answer import Request
from worker.config import WorkerConfig
from worker.engines.base import Leg
from worker.handoff import check_generation
from worker.legs import leg_of, params_of
from worker.reply import Call
from worker.service import Service

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"

MAX_SECONDS: Final = 86400.0
"""No deadline is longer than this."""

_EMPTY: Final[Mapping[bool, bytes]] = {True: b"\x80", False: b"{}"}
_READERS: Final[Mapping[tuple[str, bool], Callable[[bytes], Request]]] = {
    (CHAT, True): read_chat_frame,
    (CHAT, False): read_chat_json,
    (COMPLETIONS, True): read_completion_frame,
    (COMPLETIONS, False): read_completion_json,
}
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,15}")


class Front(Struct, frozen=True, kw_only=True):
    """What callers find in front of the service: its role, its channel's port, the shared key, the largest body in bytes.

    With `require_key` only holders of the shared key may give it work over HTTP (over the channel it is always so).
    """

    role: str = "both"
    grpc_port: int | None = None
    internal_key: str | None = None
    require_key: bool = False
    max_body_bytes: int

    @classmethod
    def of(cls, config: WorkerConfig, grpc_port: int | None = None) -> Self:
        """The part of the configuration that callers meet. `grpc_port` is the channel's real one."""
        return cls(
            role=config.role,
            grpc_port=grpc_port,
            internal_key=config.internal_key,
            require_key=config.require_key,
            max_body_bytes=config.max_body_bytes,
        )


class Operations:
    """One service as its callers see it. Headers are given by lower-case names."""

    def __init__(self, service: Service, front: Front) -> None:
        self.service = service
        self._front = front
        self._created = int(time.time())

    def check_key(self, headers: Mapping[str, str]) -> None:
        """Raise a 401 if there is a shared key and the caller does not show it (`disagg.worker_signature`)."""
        key = self._front.internal_key
        shown = headers.get(WORKER_AUTH_HEADER, "")
        if key is not None and not hmac.compare_digest(worker_signature(key).encode(), shown.encode()):
            raise ServingError(ErrorKind.UNAUTHENTICATED, "The worker's key is missing or wrong.", code="invalid_key")

    def read(self, operation: str, headers: Mapping[str, str], body: bytes) -> Call:
        """A request for an answer, read and checked. Raises ServingError. An empty body is an empty map."""
        if len(body) > self._front.max_body_bytes:
            message = f"The request body is larger than {self._front.max_body_bytes} bytes."
            raise ServingError(ErrorKind.TOO_LARGE, message, code="body_too_large")
        tagged = headers.get(MSGPACK_HEADER) == MSGPACK_HEADER_VALUE
        return self.accept(headers, _READERS[operation, tagged](body or _EMPTY[tagged]))

    def accept(self, headers: Mapping[str, str], request: Request) -> Call:
        """A request that was read, checked: the model is ours, and a hand-off is signed."""
        self.service.check_model(request.model)
        params = params_of(request)
        if params is not None and leg_of(params) is Leg.GENERATION:
            check_generation(self._front.internal_key, headers.get(DISAGG_AUTH_HEADER), params)
        given = headers.get(REQUEST_ID_HEADER, "")
        milliseconds = milliseconds_of(headers, DEADLINE_HEADER)
        return Call(
            request=request,
            request_id=given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex,
            seconds=None if milliseconds is None else min(max(milliseconds / 1000, 0.0), MAX_SECONDS),
            packed=MSGPACK_TYPE in headers.get("accept", ""),
            named=bool(given),
        )

    def model(self) -> Model:
        """The one model there is."""
        return Model(id=self.service.model, created=self._created, max_model_len=self.service.facts.context_length)

    def models(self) -> ModelList:
        """The body of `/v1/models`."""
        return ModelList(data=[self.model()])

    def server_info(self) -> ServerInfo:
        """The body of `/server_info`."""
        facts = self.service.facts
        ours = PackrelayInfo(
            frames=FRAMES_VERSION,
            deferred=True,
            grpc_port=self._front.grpc_port,
            model=self.service.model,
            engine=facts.engine,
            version=version("packrelay"),
            role=self._front.role,
            max_model_len=facts.context_length,
        )
        return ServerInfo(
            disaggregated_params=self.service.handoffs.published,
            max_batch_size=facts.max_batch_size,
            packrelay=ours,
        )


def milliseconds_of(headers: Mapping[str, str], name: str) -> int | None:
    """A header's whole number of milliseconds, None without one. Raises a 400."""
    text = headers.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise invalid(f"The header {name} takes a whole number of milliseconds.")
    return int(text)
