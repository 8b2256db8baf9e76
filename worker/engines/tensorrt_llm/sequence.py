"""One sequence: the library's results are taken as they come, and read when somebody asks, merged by then."""

import asyncio

import structlog

from worker.engines.base import (
    EngineDead,
    EngineError,
    EngineRefused,
    HandoffFailed,
    Leg,
    SequenceOutput,
    SequenceRequest,
)
from worker.engines.tensorrt_llm.library import Foreign, Library
from worker.engines.tensorrt_llm.reading import Cancelled, Reading

_log = structlog.get_logger(__name__)


class TrtllmSequence:
    """A sequence that runs. `pump` takes results until there are no more; `next` tells what is new.

    It must be read to its end or stopped; stopped, it tells nothing more.
    """

    def __init__(self, request: SequenceRequest, result: Foreign, reading: Reading, library: Library) -> None:
        self.stopped = False
        self._request = request
        self._result = result
        self._reading = reading
        self._library = library
        self._failure: Exception | None = None
        self._drained = False
        self._arrived = asyncio.Event()

    async def pump(self) -> None:
        """Take every result. It never raises: failures are told where the sequence is read."""
        try:
            async for _ in self._result:
                self._arrived.set()
        except Exception as error:  # noqa: BLE001 - raised by `next`
            self._failure = self._failure or error
        finally:
            self._drained = True
            self._arrived.set()

    async def next(self) -> SequenceOutput | None:
        """What is new, once something is; None after a stop. Raises what went wrong, as the contract words it."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            if self.stopped:
                return None
            await self._reading.judge_prompt()
            output = self._look()
            if output is not None:
                if self._drained:
                    # A failure is raised after what was said before it.
                    self._arrived.set()
                return output
            if self._failure is not None:
                raise self._told(self._failure) from self._failure
            if self._drained:
                raise RuntimeError("TensorRT-LLM stopped telling before the sequence had an end.")

    def stop(self) -> None:
        """End it. Never blocks; a second call changes nothing."""
        self.stopped = True
        self._arrived.set()
        if self._drained or self._result.finished:
            return
        try:
            self._result.abort()
        except Exception as error:  # noqa: BLE001 - the executor may be gone, and with it the sequence
            _log.warning("engine.abort_failed", sequence=self._request.request_id, reason=repr(error))

    def fail(self, error: EngineError) -> None:
        """End it with an error that its reader is told."""
        self._failure = error
        self._drained = True
        self._arrived.set()

    def _look(self) -> SequenceOutput | None:
        try:
            return self._reading.look()
        except Cancelled as error:
            self._failure = self._failure or error
        return None

    def _told(self, error: Exception) -> Exception:
        """A failure in the contract's words: dead, refused, not handed over, or this request's own."""
        if isinstance(error, EngineError):
            return error
        if isinstance(error, self._library.fatal):
            return EngineDead("The executor of TensorRT-LLM has failed.")
        if not self._reading.begun:
            if self._request.leg is Leg.GENERATION:
                return HandoffFailed("TensorRT-LLM could not go on from the hand-off.")
            if self._request.sampling.constraint is not None:
                return EngineRefused("TensorRT-LLM cannot hold an answer to this form.", "response_format")
        return RuntimeError(f"TensorRT-LLM failed on the sequence: {error!r}")
