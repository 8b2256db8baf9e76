"""The requests a worker is serving: who is let in, how each is ended early, and what ends them all. Knows no HTTP.

    async with service.run("chat", request_id, seconds) as run:
        async for batch in service.batches(run, request):
            …   # Started first, then Deltas, Done last

Whatever goes wrong, before the first batch or after it, is raised as a ServingError: besides Done it is the only way an answer
ends. What is wrong with the request is raised before the first batch, and so is what the engine says before its first output.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any, Final

import structlog

from schemas.events import Event
from schemas.openai.errors import ErrorKind, ServingError
from worker.answer import Answer, Request
from worker.engines.base import Engine, EngineDead, EngineError, EngineFacts, Sampling, SequenceRequest
from worker.legs import Handoffs
from worker.metrics import Counters
from worker.run import Run
from worker.sequence import told

RETRY_AFTER_SECONDS: Final = 1.0
PROBE_SECONDS: Final = 30.0
TELL_SECONDS: Final = 10.0
"""How long an engine may take to tell what happened in it."""
HANDOVER_SECONDS: Final = 2.0
"""How long a worker that is shutting down stays for the states it keeps: the generation leg fetches at once or never."""
STOP_SECONDS: Final = 2.0
"""How long requests that are being ended may take to say so."""

_log = structlog.get_logger(__name__)


class Service:
    """All requests of one engine. `model` is the name clients ask for; at most `max_requests` are held at once."""

    def __init__(
        self,
        engine: Engine,
        facts: EngineFacts,
        handoffs: Handoffs,
        counters: Counters,
        *,
        model: str,
        max_requests: int,
    ) -> None:
        self.engine = engine
        self.facts = facts
        self.handoffs = handoffs
        self.counters = counters
        self.model = model
        self.draining = False
        self._max_requests = max_requests
        self._runs: set[Run] = set()
        self._serial = count(1)
        self._changed = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Requests being served now."""
        return len(self._runs)

    @asynccontextmanager
    async def run(self, endpoint: str, request_id: str, seconds: float | None = None) -> AsyncIterator[Run]:
        """Serve a request in this block, in at most `seconds`. Raises ServingError: refused at the door, or ended early.

        However it is left, the request is over then, and a prefill state made for it is kept only if nothing went wrong.
        """
        self._admit()
        with self._counted(endpoint):
            async with self._bounded(endpoint, request_id, seconds) as run:
                yield run

    def batches(self, run: Run, request: Request) -> AsyncGenerator[list[Event], None]:
        """The answer as it comes, everything that is ready at a time. Closing it early aborts whatever the engine does for it."""
        return Answer(self.engine, self.facts, self.handoffs, self.counters, run).batches(request)

    def check_model(self, name: str) -> None:
        """Raise a 404 if another model than ours is asked for."""
        if name != self.model:
            message = f"The model '{name[:256]}' does not exist."
            raise ServingError(ErrorKind.NOT_FOUND, message, param="model", code="model_not_found")

    def check(self) -> None:
        """Raise a 503 if no request can succeed: shutting down, or the engine is dead. Never blocks."""
        if self.draining:
            raise _shutting_down()
        try:
            self.engine.check()
        except EngineDead as error:
            raise told(error) from error

    async def probe(self) -> None:
        """Generate one token. Raises ServingError if that fails."""
        async with self.run("probe", "probe", PROBE_SECONDS) as run:
            prompt = self.engine.tokenize("Hello", special=False, add_special=True)
            request = SequenceRequest(
                request_id=run.key, prompt=prompt, sampling=Sampling(max_tokens=1, temperature=0.0)
            )
            outputs = self.engine.generate(request)
            try:
                async for _ in outputs:
                    pass
            except Exception as error:
                raise ServingError(ErrorKind.INTERNAL, "The model does not generate.", code="engine_failed") from error
            finally:
                await outputs.aclose()

    async def told_by_engine(self, asked: Awaitable[list[Any]]) -> list[Any]:
        """What an engine tells of itself, in its own words (Any). Raises a 400 for one that does not, a 503 for a late one."""
        try:
            async with asyncio.timeout(TELL_SECONDS):
                return await asked
        except TimeoutError as error:
            raise ServingError(ErrorKind.UNAVAILABLE, "The engine did not tell in time.") from error
        except EngineError as error:
            raise told(error) from error

    def abort(self, request_id: str) -> None:
        """End every request of exactly this id, and forget the prefill states kept for it. Unknown ids are fine."""
        for run in [run for run in self._runs if run.request_id == request_id]:
            self.counters.aborts += 1
            run.stop(ServingError(ErrorKind.CANCELLED, "The request was aborted.", code="aborted"))
        self.handoffs.store.forget(request_id)

    # --- the end ---

    def drain(self) -> None:
        """Let nobody in any more; health says so."""
        self.draining = True

    async def finish(self, grace: float, hurry: asyncio.Event) -> None:
        """Wait for the requests being served, at most `grace` seconds or until there is a hurry; end the rest with an error."""
        await _first_of(self._idle(), hurry.wait(), grace)
        if self._runs:
            _log.warning("service.requests_ended", requests=len(self._runs))
        for run in list(self._runs):
            run.stop(_shutting_down())
        await _first_of(self._idle(), asyncio.Event().wait(), STOP_SECONDS)
        await _first_of(self.handoffs.store.until_empty(), hurry.wait(), min(grace, HANDOVER_SECONDS))

    async def _idle(self) -> None:
        while self._runs:
            self._changed.clear()
            await self._changed.wait()

    # --- each request ---

    def _admit(self) -> None:
        if self.draining:
            raise _shutting_down()
        if len(self._runs) >= self._max_requests:
            message = f"This worker holds {self._max_requests} requests already."
            raise ServingError(ErrorKind.RATE_LIMITED, message, code="overloaded", retry_after=RETRY_AFTER_SECONDS)

    @asynccontextmanager
    async def _bounded(self, endpoint: str, request_id: str, seconds: float | None) -> AsyncIterator[Run]:
        """The block under the one timeout that deadlines, aborts and the shutdown share."""
        scope = asyncio.timeout(seconds)
        run = Run(request_id, f"{request_id}:{next(self._serial)}", endpoint, scope)
        self._runs.add(run)
        try:
            async with scope:
                yield run
        except BaseException as error:
            self._forget_state(run)
            if isinstance(error, TimeoutError) and scope.expired():
                raise run.error from error
            raise
        finally:
            if run.stopped:
                # Ended and complete in the same turn of the loop: the answer may go out, but nobody comes for the state.
                self._forget_state(run)
            self._runs.discard(run)
            self._changed.set()

    def _forget_state(self, run: Run) -> None:
        if run.handle is not None:
            self.handoffs.store.discard(run.handle)

    @contextmanager
    def _counted(self, endpoint: str) -> Iterator[None]:
        outcome = "ok"
        try:
            yield
        except ServingError as error:
            outcome = error.kind.value
            raise
        except asyncio.CancelledError:
            outcome = "disconnected"
            raise
        except Exception:
            outcome = ErrorKind.INTERNAL.value
            raise
        finally:
            self.counters.requests[endpoint, outcome] += 1


async def _first_of(event: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any], seconds: float) -> None:
    """Wait for whichever comes first, at most this long."""
    waiting = {asyncio.create_task(event, name="event"), asyncio.create_task(other, name="other")}
    await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


def _shutting_down() -> ServingError:
    message = "The server is shutting down."
    return ServingError(ErrorKind.UNAVAILABLE, message, code="shutting_down", retry_after=RETRY_AFTER_SECONDS)
