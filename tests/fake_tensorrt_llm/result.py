"""What a request gives back: a RequestOutput that grows while it is iterated."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from tests.fake_tensorrt_llm.tensor import Tensor


@dataclass(slots=True)
class Logprob:
    """The log probability of a token, and its rank."""

    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One sequence so far. Any: DisaggregatedParams of either version."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    generation_logits: Tensor | None = None
    disaggregated_params: Any = None


class Response(NamedTuple):
    """What the executor says at a time."""

    tokens: Sequence[int] = ()
    logprobs: Sequence[dict[int, Logprob]] = ()
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: Exception | None = None
    params: Any = None


class RequestOutput:
    """The growing output. Users do not construct it."""

    def __init__(self, request_id: int, prompt: list[int], abort: Callable[[int], None]) -> None:
        self.request_id = request_id
        self.prompt: str | None = None
        self.prompt_token_ids = prompt
        self.outputs = [CompletionOutput(0)]
        self.context_logits: list[Tensor] | None = None
        self.cached_tokens = 0
        self.finished = False
        self._abort = abort
        self._aborted = False
        self._responses: asyncio.Queue[Response] = asyncio.Queue()

    def put(self, response: Response) -> None:
        """What the executor does."""
        self._responses.put_nowait(response)

    def abort(self) -> None:
        """End the request."""
        self._aborted = True
        self._abort(self.request_id)

    def aborted(self) -> bool:
        """Whether that was asked for."""
        return self._aborted

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Self:
        if self.finished:
            raise StopAsyncIteration
        response = await self._responses.get()
        if response.error is not None:
            raise response.error
        said = self.outputs[0]
        said.token_ids.extend(response.tokens)
        said.logprobs.extend(response.logprobs)
        said.disaggregated_params = response.params or said.disaggregated_params
        said.finish_reason, said.stop_reason = response.finish_reason, response.stop_reason
        self.finished = response.finish_reason is not None
        return self
