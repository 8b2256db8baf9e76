"""The stream of a stock worker, quirks included, and the ways it can break."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from tests.stock.behaviour import Behaviour, Ending
from tests.stock.legs import Leg
from tests.stock.protocol import ChatRequest, CompletionRequest, Generation
from tests.stock.replies import DONE, Head, chat_role, chat_step, chunk, completion_step, sse, usage

METRICS = {
    "Server-Timing": "server_queue;dur=0.1",
    "X-TRTLLM-Start-End-Time": "server-start;ts=1.0, server-end;ts=2.0",
    "X-TRTLLM-Step-Metrics": "[]",
    "X-TRTLLM-Ctx-Chunk-Metrics": "[]",
}
METRICS_EVENT = f"event: trtllm.perf_metrics\ndata: {json.dumps(METRICS)}\n\n".encode()
FAILURE = {"error": {"message": "the engine failed", "type": "server_error", "code": None, "param": None}}


class EngineFailed(Exception):
    """What the engine raises in the middle of a stream."""


@dataclass(frozen=True)
class Stream:
    """One streamed reply. `vanish` ends the connection without a word."""

    request: Generation
    leg: Leg
    head: Head
    behaviour: Behaviour
    metrics: bool
    vanish: Callable[[], None]

    async def records(self) -> AsyncGenerator[bytes, None]:
        """The bytes, record by record."""
        sent = 0
        if isinstance(self.request, ChatRequest):
            for index in range(len(self.leg.choices)):
                yield sse(self._chunk([chat_role(index)], sent), first_of_chat=index == 0)
        for choice in self._steps():
            if self.behaviour.ending is not None and sent == self.behaviour.tokens_before_ending:
                async for record in self._broken(self.behaviour.ending):
                    yield record
                return
            await asyncio.sleep(self.behaviour.token_delay)
            sent += 1
            yield sse(self._chunk([choice], sent))
        if self.request.usage_wanted():
            yield sse(self.head.record(self._object(), [], usage=self.leg.usage()))
        yield DONE
        if self.metrics:
            yield METRICS_EVENT

    def _steps(self) -> list[dict[str, Any]]:
        longest = max(len(choice.tokens) for choice in self.leg.choices)
        return [
            self._step(index, at)
            for at in range(longest)
            for index, choice in enumerate(self.leg.choices)
            if at < len(choice.tokens)
        ]

    def _step(self, index: int, at: int) -> dict[str, Any]:
        if isinstance(self.request, ChatRequest):
            return chat_step(self.request, index, self.leg.choices[index], at)
        if isinstance(self.request, CompletionRequest):
            return completion_step(self.request, index, self.leg.choices[index], at)
        raise TypeError(type(self.request).__name__)

    def _object(self) -> str:
        return "chat.completion.chunk" if isinstance(self.request, ChatRequest) else "text_completion"

    def _chunk(self, choices: list[dict[str, Any]], sent: int) -> dict[str, Any]:
        counts = None
        if self.request.usage_wanted_always():
            counts = usage(self.leg.prompt_tokens, sent, self.leg.cached_tokens)
        return chunk(self.head.record(self._object(), choices, usage=counts))

    async def _broken(self, ending: Ending) -> AsyncGenerator[bytes, None]:
        if ending is Ending.VANISH:
            self.vanish()
        elif ending is Ending.SILENCE:
            await self.behaviour.resume.wait()
        elif ending is Ending.FAILURE:
            if isinstance(self.request, ChatRequest):
                raise EngineFailed(FAILURE["error"]["message"])
            yield sse(FAILURE)
            yield DONE * (2 if self.behaviour.second_done else 1)
