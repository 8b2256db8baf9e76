"""The scheduler: one token per sequence and step, `max_batch_size` sequences at once. It fails, cancels and hands off."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.fake_tensorrt_llm.model import RequestError, marked
from tests.fake_tensorrt_llm.result import Logprob, RequestOutput, Response
from tests.fake_tensorrt_llm.stage import STAGE
from tests.fake_tensorrt_llm.tokenizer import END


class CppExecutorError(RuntimeError):
    """What the library raises when its executor is lost."""


class Job:
    """One request in the executor. `answer` is there once its prefill is over. Any: a SamplingParams of either version."""

    def __init__(self, result: RequestOutput, params: Any, limit: int) -> None:
        self.result = result
        self.params = params
        self.answer: Any = None
        self.replayed: list[tuple[int, dict[int, Logprob] | None]] = []
        self.seal: Callable[[Response], Response] = lambda response: response
        self.marks = marked(result.prompt_token_ids)
        self.aborted = False
        self.over = False
        self.made = 0
        self._limit = limit

    def step(self) -> Response:
        """The next token, behind those the context engine drew."""
        drawn = self.replayed
        self.replayed = []
        if self.made + len(drawn) < self._limit and not self._ends([token for token, _ in drawn]):
            token, likely = self.answer.draw()
            drawn = [*drawn, (token, _told(token, likely, self.params.logprobs))]
        self.made += len(drawn)
        tokens = [token for token, _ in drawn]
        return Response(
            tokens=tokens,
            logprobs=[likely for _, likely in drawn if likely is not None],
            finish_reason=self._finish(tokens),
            stop_reason=tokens[-1] if self._stops(tokens) else None,
        )

    def _stops(self, tokens: list[int]) -> bool:
        return tokens[-1] in (self.params.stop_token_ids or [])

    def _ends(self, tokens: list[int]) -> bool:
        return bool(tokens) and (self._stops(tokens) or (tokens[-1] == END and not self.params.ignore_eos))

    def _finish(self, tokens: list[int]) -> str | None:
        if self._ends(tokens):
            return "stop"
        return "length" if self.made >= self._limit else None


class Executor:
    """Runs jobs on the event loop they are submitted from. `busy` and `idle` are for tests to wait on; `aborted` lists ids."""

    def __init__(self, max_batch_size: int) -> None:
        self.dead = False
        self.closed = False
        self.busy, self.idle = asyncio.Event(), asyncio.Event()
        self.aborted: list[int] = []
        self._room = max_batch_size
        self._jobs: dict[int, Job] = {}
        self._prefills: dict[int, asyncio.Task[None]] = {}
        self._ticking = False

    def submit(self, job: Job, prefill: Coroutine[Any, Any, None]) -> None:
        """Take a job; its turn comes in the order of arrival, and its first token once the prefill has given it an answer."""
        request_id = job.result.request_id
        self._jobs[request_id] = job
        self.busy.set()
        self.idle.clear()
        self._prefills[request_id] = asyncio.create_task(self._prefilled(job, prefill), name=f"prefill-{request_id}")
        self._tick_later()

    async def _prefilled(self, job: Job, prefill: Coroutine[Any, Any, None]) -> None:
        try:
            await prefill
        except RequestError as error:
            self._leave(job, Response(error=error))

    def abort(self, request_id: int) -> None:
        """End a job at the next step; one that is over does not mind."""
        if request_id in self._jobs:
            self.aborted.append(request_id)
            self._jobs[request_id].aborted = True
            self._tick_later()

    def shutdown(self) -> None:
        """End everything."""
        self.closed = True
        for prefill in self._prefills.values():
            prefill.get_loop().call_soon_threadsafe(prefill.cancel)
        self._jobs.clear()

    def die(self) -> None:
        """Lose the executor."""
        self.dead = True
        for job in list(self._jobs.values()):
            self._leave(job, Response(error=CppExecutorError("the executor was lost")))

    def _leave(self, job: Job, last: Response) -> None:
        job.over = True
        self._jobs.pop(job.result.request_id, None)
        prefill = self._prefills.pop(job.result.request_id)
        if prefill is not asyncio.current_task():
            prefill.cancel()
        if not self._jobs:
            self.busy.clear()
            self.idle.set()
        job.result.put(last)

    def _tick_later(self) -> None:
        if not self._ticking and not self.closed:
            self._ticking = True
            asyncio.get_running_loop().call_later(STAGE.step_seconds, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        for job in [job for job in self._jobs.values() if job.aborted]:
            self._leave(job, Response(finish_reason="cancelled"))
        for job in list(self._jobs.values())[: self._room]:
            if job.answer is not None and not job.over:
                self._step(job)
        if self._jobs:
            self._tick_later()

    def _step(self, job: Job) -> None:
        marks, made = job.marks, str(job.made)
        if marks.get("die") == made:
            self.die()
        elif marks.get("fail") == made:
            self._leave(job, Response(error=RequestError("the prompt wants it so")))
        elif marks.get("silent") != made:
            response = job.step()
            if response.finish_reason is None:
                job.result.put(response)
            else:
                self._leave(job, job.seal(response))


def _told(token: int, likely: dict[int, float], count: int | None) -> dict[int, Logprob] | None:
    """The likeliest tokens and the one that was drawn; nothing for a count of zero, as with the library."""
    if not count:
        return None
    ranked = sorted(likely, key=lambda other: (-likely[other], other))
    return {other: Logprob(likely[other], ranked.index(other) + 1) for other in [*ranked[:count], token]}
