"""One leg: one frame to one worker, counted while it lasts, and what its end means.

LegFailed   the leg ended before a byte of its answer was relayed: what the client would be told, and whether to try again
"""

from enum import Enum
from math import isfinite
from typing import Self

from gateway.links.base import BadReply, ConnectFailed, LinkError, Reply, ReplyStream, Take, WorkerSilent
from gateway.links.errors import lift_error
from gateway.member import LegName, Outcome, Worker
from gateway.order import Order
from gateway.spliced_frame import RequestFrame
from gateway.whole_reply import check_whole
from schemas.codec import MALFORMED, SSE_TYPE
from schemas.openai.errors import ErrorKind, ServingError, kind_of_status
from schemas.openai.stream import error_record

HANDOFF_FAILED = "handoff_failed"
"""The code of a worker's error when a prefill state was lost, expired or of another model: a fresh context leg may help."""

SHUTTING_DOWN = "shutting_down"
"""The code of a worker's error when it takes no more work because its process ends."""

_MAX_RETRY_AFTER_SECONDS = 120.0
_ERROR_RECORD = b'data: {"error":'
_NOT_THE_CLIENTS = frozenset({401, 403, 404, 405, 407, 408})
"""Statuses that speak of the deployment: the gateway checked key, route and model before it asked."""


class Retry(Enum):
    """What may be done about a failed leg."""

    NEVER = "never"
    ELSEWHERE = "elsewhere"
    """The same request, on another worker where there is one."""
    AFRESH = "afresh"
    """Both legs again: the hand-off between them failed."""


class LegFailed(Exception):
    """A leg failed before anything of it was relayed. `error` is what the client is told if nothing else works.

    `unheard` is whether the worker may have done its part all the same, and its answer was lost, late or not understood.
    """

    def __init__(
        self, worker: Worker, error: ServingError, retry: Retry, outcome: Outcome, *, unheard: bool = False
    ) -> None:
        super().__init__(error.message)
        self.worker = worker
        self.error = error
        self.retry = retry
        self.outcome = outcome
        self.unheard = unheard


class Leg:
    """One leg on one worker. Use it as a context: whatever way it is left, the worker's load and breaker hear of it once.

    A stream outlives the block that started it: `keep` takes it out, and closing the stream ends the leg.
    """

    def __init__(self, worker: Worker, name: LegName) -> None:
        self.worker = worker
        self._name = name
        self._open = False
        self._kept = False

    def __enter__(self) -> Self:
        self._open = True
        self.worker.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LegFailed):
            self.end(error.outcome)
        elif error is not None:
            self.end(Outcome.CANCELLED)
        elif not self._kept:
            self.end(Outcome.SUCCESS)

    def end(self, outcome: Outcome) -> None:
        """The leg is over. Only the first call counts."""
        if self._open:
            self._open = False
            self.worker.end(self._name, outcome)

    async def whole(self, order: Order, frame: RequestFrame) -> Reply:
        """The worker's whole, successful reply. Raises LegFailed."""
        try:
            reply = await self.worker.link.call(order.operation, frame, order.headers, order.deadlines)
        except LinkError as error:
            raise self.lost(error) from error
        if reply.status != 200:
            raise self._refused(reply.status, reply.headers.get("retry-after"), reply.body)
        return reply

    async def answer(self, order: Order, frame: RequestFrame) -> bytes:
        """The worker's whole reply as JSON for the client, checked to be one. Raises LegFailed."""
        reply = await self.whole(order, frame)
        try:
            check_whole(reply.body)
        except MALFORMED as error:
            raise self.lost(BadReply("The reply is not a completion.")) from error
        return reply.body

    async def stream(self, order: Order, frame: RequestFrame) -> "LegStream":
        """The worker's stream with its first events already here, so that a failure before them can be retried."""
        try:
            stream = await self.worker.link.stream(order.operation, frame, order.headers, order.deadlines)
        except LinkError as error:
            raise self.lost(error) from error
        try:
            if stream.status != 200:
                raise self._refused(stream.status, stream.headers.get("retry-after"), await stream.body())
            if not stream.headers.get("content-type", "").startswith(SSE_TYPE):
                raise BadReply("The reply to a streamed request is not a stream.")
            first = await _first_events(stream)
            if stream.failed:
                raise self._failed_at_once(first)
        except LinkError as error:
            stream.close()
            raise self.lost(error) from error
        except BaseException:
            stream.close()
            raise
        self._kept = True
        return LegStream(self, stream, first)

    def lost(self, error: LinkError) -> LegFailed:
        """The link failed, or what came over it was no answer."""
        if isinstance(error, ConnectFailed):
            self.worker.unreachable()
        told, retry = client_error(error)
        reached = not isinstance(error, ConnectFailed)
        return LegFailed(self.worker, told, retry, Outcome.FAILURE, unheard=reached)

    def _failed_at_once(self, record: bytes) -> LegFailed:
        """The worker's first word is that it failed: nothing was relayed yet, so somebody else may be asked."""
        payload = record[record.rindex(_ERROR_RECORD) :].removeprefix(b"data: ").strip()
        return self._refused(500, None, payload)

    def _refused(self, status: int, retry_after: str | None, body: bytes) -> LegFailed:
        """A reply that is not 200: whose fault it is, and who may be asked next (docs/reliability.md)."""
        lifted = lift_error(body, status).error
        error = ServingError(kind_of_status(status), lifted.message, param=lifted.param, code=lifted.code)
        if error.code == HANDOFF_FAILED:
            return LegFailed(self.worker, error, Retry.AFRESH, Outcome.NEUTRAL)
        if status < 400:
            return self.lost(BadReply(f"The worker answered {status}."))
        if status in _NOT_THE_CLIENTS:
            self.worker.identity_checked = False
            told = ServingError(ErrorKind.BAD_WORKER, "The worker refused the gateway.", code="worker_refused")
            return LegFailed(self.worker, told, Retry.ELSEWHERE, Outcome.FAILURE)
        if status in {429, 503}:
            error.retry_after = _seconds(retry_after)
            if error.code == SHUTTING_DOWN:
                self.worker.up = False  # Until a check finds it, or what takes its place, in good health.
            elif retry_after is not None:
                self.worker.ask_not_before(error.retry_after)
            return LegFailed(self.worker, error, Retry.ELSEWHERE, Outcome.NEUTRAL)
        if status >= 500:
            error.kind = ErrorKind.DEADLINE if status == 504 else ErrorKind.BAD_WORKER
            return LegFailed(self.worker, error, Retry.ELSEWHERE, Outcome.FAILURE)
        suspect = status == 400 and error.param is None and self.worker.dialect.stock
        return LegFailed(self.worker, error, Retry.NEVER, Outcome.SUSPECT if suspect else Outcome.NEUTRAL)


class LegStream:
    """A leg's stream as it goes to the client. Never raises: a failure is its last record."""

    def __init__(self, leg: Leg, stream: ReplyStream, first: bytes) -> None:
        self._leg = leg
        self._stream = stream
        self._first = first
        self._ended = False
        self.failed = False
        """Whether it ended with an error record: the worker's, or one of ours."""

    async def read(self) -> bytes:
        """The next whole events; `b""` at the end. Every stream has exactly one terminal: the worker's, or an error record."""
        if self._first:
            first, self._first = self._first, b""
            return first
        if self._ended:
            return b""
        try:
            chunk = await self._stream.read()
        except LinkError as error:
            self._finish(Outcome.FAILURE)
            return error_record(client_error(error)[0])
        if not chunk:
            self._finish(Outcome.SUCCESS)
        elif self._stream.failed:
            self._finish(Outcome.FAILURE)
        return chunk

    async def pass_on(self, take: Take) -> None:
        """Give ordinary events to `take` as they come; the terminal, and a failure, are for `read`."""
        if not self._first and not self._ended:
            await self._stream.pass_on(take)

    def _finish(self, outcome: Outcome) -> None:
        self._ended = True
        self.failed = outcome is Outcome.FAILURE
        self._stream.close()
        self._leg.end(outcome)

    def close(self) -> None:
        """End the leg, complete or not: an incomplete one is aborted on the worker. A second call does nothing."""
        if not self._ended:
            self._finish(Outcome.CANCELLED)


async def _first_events(stream: ReplyStream) -> bytes:
    """The stream's bytes up to its first event that says something; comments alone are no answer yet."""
    held = b""
    while chunk := await stream.read():
        held += chunk
        if b"data:" in chunk:
            break
    return held


def client_error(error: LinkError) -> tuple[ServingError, Retry]:
    """What a client is told about a link's failure, and whether another worker may be asked."""
    if isinstance(error, WorkerSilent):
        return ServingError(
            ErrorKind.DEADLINE, "The worker did not answer in time.", code="worker_timeout"
        ), Retry.NEVER
    if isinstance(error, ConnectFailed):
        message = "The worker could not be reached."
    elif isinstance(error, BadReply):
        message = "The worker gave an answer that could not be understood."
    else:
        message = "The connection to the worker was lost before the answer was complete."
    return ServingError(ErrorKind.BAD_WORKER, message, code="worker_lost"), Retry.ELSEWHERE


def _seconds(retry_after: str | None) -> float:
    """A worker's Retry-After in seconds, within reason; 1 when there is none or it is a date."""
    try:
        seconds = float(retry_after or 1)
    except ValueError:
        return 1.0
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER_SECONDS) if isfinite(seconds) else 1.0
