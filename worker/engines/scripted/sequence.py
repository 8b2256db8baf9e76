"""One sequence of the scripted engine: its answer so far, waiting to be read."""

import asyncio

from msgspec import structs

from worker.engines.base import SequenceOutput, SequenceRequest, Token
from worker.engines.scripted.model import Answer, Said, judged_prompt
from worker.engines.scripted.script import Script


class ScriptedSequence:
    """A sequence's progress. Tokens wait here, merged, until the reader comes. `due` is when the next one is, None for never."""

    def __init__(self, request: SequenceRequest, script: Script, key: bytes, answer: Answer) -> None:
        self.request = request
        self.script = script
        self.key = key
        self.answer = answer
        self.due: float | None = None
        self.over = False
        self._pending: list[Token] = []
        self._first = True
        self._end: Said | None = None
        self._error: Exception | None = None
        self._wake = asyncio.Event()

    def add(self, said: Said) -> None:
        self._pending.append(said.token)
        if said.finish_reason:
            self.over, self._end = True, said
        self._wake.set()

    def fail(self, error: Exception) -> None:
        """End it with an error, which comes after the tokens that are there."""
        self.over, self._error = True, error
        self._wake.set()

    def drop(self) -> None:
        """End it because nobody wants it any more."""
        self.over = True
        self._pending.clear()
        self._wake.set()

    async def next(self) -> SequenceOutput | None:
        """What is new, once something is; None after an abort."""
        while not (self._pending or self.over):
            self._wake.clear()
            await self._wake.wait()
        if self._pending:
            return self._output()
        if self._error is not None:
            raise self._error
        return None

    def _output(self) -> SequenceOutput:
        tokens, self._pending = self._pending, []
        output = SequenceOutput(tokens=tokens)
        if self._first:
            self._first = False
            output = structs.replace(output, cached_tokens=self._cached(), prompt=self._judged_prompt())
        if self._end is not None:
            reason, stop_token = self._end.finish_reason, self._end.stop_token
            output = structs.replace(output, finish_reason=reason, stop_token=stop_token)
        return output

    def _cached(self) -> int:
        return min(self.script.cached, len(self.request.prompt) - 1)

    def _judged_prompt(self) -> list[Token]:
        count = self.request.sampling.prompt_logprobs
        return [] if count is None else judged_prompt(self.request.prompt, count)
