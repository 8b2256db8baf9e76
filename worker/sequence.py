"""One sequence: what the engine makes of it, read into deltas; and several of them, interleaved fairly."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final

import anyio
import structlog
from msgspec import structs

from schemas.disagg import PENDING_FINISH_REASONS, DisaggregatedParams
from schemas.events import Delta, merge
from schemas.openai.errors import ErrorKind, ServingError
from worker.engines.base import EngineDead, EngineRefused, HandoffFailed, SequenceOutput
from worker.output import SequenceReader

CLOSE_SECONDS: Final = 2.0
"""How long an engine may take to end a sequence that is closed early; the abort itself has been sent by then."""
HANDOFF_FAILED: Final = "handoff_failed"
"""The code of an error that a fresh context leg may cure."""

_log = structlog.get_logger(__name__)


def told(error: Exception) -> ServingError:
    """What a client is told about what an engine raised."""
    if isinstance(error, ServingError):
        return error
    if isinstance(error, EngineRefused):
        return ServingError(ErrorKind.INVALID, str(error), param=error.param)
    if isinstance(error, HandoffFailed):
        return ServingError(ErrorKind.UNAVAILABLE, "The hand-off between the workers failed.", code=HANDOFF_FAILED)
    if isinstance(error, EngineDead):
        return ServingError(ErrorKind.UNAVAILABLE, "The model is not running any more.", code="engine_dead")
    return ServingError(ErrorKind.INTERNAL, "The model failed on this request.", code="engine_failed")


class LiveSequence:
    """A sequence being generated, and what is known of it beside its text. `deltas` is read once, to its end or closed.

    `outputs` is an engine's generator; `abort` stops it without waiting.
    """

    def __init__(
        self,
        name: str,
        outputs: AsyncGenerator[SequenceOutput, None],
        abort: Callable[[str], None],
        reader: SequenceReader,
        *,
        keep_outputs: bool = False,
    ) -> None:
        self.kept: list[SequenceOutput] = []
        """What the engine said, if `keep_outputs`: a context leg's one token."""
        self.state: bytes | None = None
        self.handoff: DisaggregatedParams | None = None
        self.cached_tokens = 0
        self.tokens = 0
        self.finish_reason: str | None = None
        self._name = name
        self._outputs = outputs
        self._abort = abort
        self._reader = reader
        self._keep_outputs = keep_outputs

    @property
    def pending(self) -> bool:
        """Whether it ended because it may go on elsewhere, and not because the answer is complete."""
        return self.finish_reason in PENDING_FINISH_REASONS

    @property
    def mean_logprob(self) -> float:
        """What candidates are ranked by: log probability per token, -inf without one."""
        return self._reader.mean_logprob

    async def deltas(self) -> AsyncGenerator[Delta | None, None]:
        """The sequence as it comes; None where an output says nothing yet. Raises ServingError. Closed early, it is aborted."""
        ended = False
        try:
            async for output in self._outputs:
                ended = output.finish_reason is not None
                yield self._read(output)
                if self._reader.finished:
                    break
        except Exception as error:
            ended = True
            raise self._told(error) from error
        finally:
            await self._end(ended)
        if not self._reader.finished:
            message = "The model stopped before the answer was complete."
            raise ServingError(ErrorKind.INTERNAL, message, code="engine_failed")

    def _read(self, output: SequenceOutput) -> Delta | None:
        self.cached_tokens += output.cached_tokens
        self.state = output.state or self.state
        self.handoff = output.handoff or self.handoff
        if self._keep_outputs:
            self.kept.append(structs.replace(output, state=None))
        delta = self._reader.feed(output)
        if delta is not None:
            self.tokens += delta.tokens
            self.finish_reason = delta.finish_reason or None
        return delta

    async def _end(self, ended: bool) -> None:
        if not ended:
            # It does not block and goes first: it works even if nothing is awaited any more.
            self._abort(self._name)
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            await self._outputs.aclose()

    def _told(self, error: Exception) -> ServingError:
        if not isinstance(error, EngineRefused | ServingError):
            _log.error("sequence.failed", sequence=self._name, reason=repr(error), exc_info=error)
        return told(error)


async def interleave(sources: Sequence[AsyncGenerator[Delta | None, None]]) -> AsyncGenerator[list[Delta], None]:
    """Everything that is ready, again and again; of each source at most one delta at a time, merged if the reader was late.

    A batch may be empty. The first failure ends all; closing it closes all sources.
    """
    if len(sources) == 1:
        # Nothing to mix, so no task: the engine itself merges while the reader is busy.
        async with aclosing(sources[0]) as source:
            async for delta in source:
                yield [] if delta is None else [delta]
        return
    mixer = _Mixer(sources)
    try:
        while mixer.unfinished:
            yield await mixer.batch()
    finally:
        await mixer.close()


class _Mixer:
    """Runs every source in a task of its own, with one slot each."""

    def __init__(self, sources: Sequence[AsyncGenerator[Delta | None, None]]) -> None:
        self._slots: dict[int, Delta] = {}
        self._ready = asyncio.Event()
        self._failure: Exception | None = None
        self._running = len(sources)
        self._tasks = {
            asyncio.create_task(self._pump(number, source), name=f"sequence-{number}")
            for number, source in enumerate(sources)
        }

    @property
    def unfinished(self) -> bool:
        """Whether there is or will be something to read."""
        return bool(self._running or self._slots or self._failure)

    async def batch(self) -> list[Delta]:
        """What is ready, once something is. Raises what a source raised."""
        await self._ready.wait()
        self._ready.clear()
        if self._failure is not None:
            raise self._failure
        slots, self._slots = self._slots, {}
        return list(slots.values())

    async def close(self) -> None:
        """End every source, within a bound."""
        for task in self._tasks:
            task.cancel()
        with anyio.move_on_after(2 * CLOSE_SECONDS, shield=True):
            await asyncio.wait(self._tasks)

    async def _pump(self, number: int, source: AsyncGenerator[Delta | None, None]) -> None:
        try:
            async with aclosing(source):
                async for delta in source:
                    self._put(number, delta)
        except Exception as error:  # noqa: BLE001 - raised where the batches are read
            self._failure = self._failure or error
        finally:
            self._running -= 1
            self._ready.set()

    def _put(self, number: int, delta: Delta | None) -> None:
        if delta is not None:
            earlier = self._slots.get(number)
            self._slots[number] = delta if earlier is None else merge(earlier, delta)
        self._ready.set()
