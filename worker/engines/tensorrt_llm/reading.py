"""The library's output of a sequence, which grows in place, as our outputs: what is new since the last look.

Everything is read from what has grown (`token_ids`, `logprobs`), nothing from its differences: how a version counts those for the
replayed first token of a generation leg has changed.
"""

import asyncio
from typing import Literal

from worker.engines.base import Candidate, HandoffFailed, Leg, SequenceOutput, SequenceRequest, Token
from worker.engines.tensorrt_llm.handoff import cached_before, wire_params
from worker.engines.tensorrt_llm.library import Foreign, Library
from worker.engines.tensorrt_llm.vocabulary import Vocabulary


class Cancelled(Exception):
    """The library ended the sequence because it was told to."""


class Reading:
    """Reads one sequence. `result` is the library's RequestOutput."""

    def __init__(self, request: SequenceRequest, result: Foreign, library: Library, vocabulary: Vocabulary) -> None:
        self._request = request
        self._result = result
        self._library = library
        self._vocabulary = vocabulary
        self._seen = 0
        self._told = 0
        self._begun = False
        self._prompt: list[Token] | None = [] if request.sampling.prompt_logprobs is None else None

    @property
    def begun(self) -> bool:
        """Whether anything was said."""
        return self._begun

    def look(self) -> SequenceOutput | None:
        """What is new, None for nothing. Raises Cancelled, HandoffFailed, or RuntimeError for what is no proper end."""
        said = self._result.outputs[0]
        finish = self._finish(said)
        ids = said.token_ids[: self._reported(said)]
        self._check_first(ids)
        tokens = [self._token(said, place, ids[place]) for place in range(self._seen, len(ids))]
        stop = self._stop(ids, finish)
        if finish == "stop" and tokens and tokens[-1].id in (stop, self._vocabulary.end):
            tokens[-1] = Token(id=tokens[-1].id, data=b"", logprob=tokens[-1].logprob, top=tokens[-1].top)
        if not tokens and finish is None:
            return None
        prompt = [] if self._begun else self._prompt
        if prompt is None:
            return None
        # A generation leg learns of the context leg's cache from its engine, perhaps only at the end.
        cached = self._cached(said)
        told, self._told = self._told, cached
        self._seen, self._begun = len(ids), True
        return SequenceOutput(
            tokens=tokens,
            finish_reason=finish,
            stop_token=stop,
            cached_tokens=cached - told,
            prompt=prompt,
            handoff=self._handoff(said, finish),
        )

    # --- its parts ---

    def _finish(self, said: Foreign) -> Literal["stop", "length"] | None:
        if not self._result.finished:
            return None
        if said.finish_reason == "cancelled":
            raise Cancelled
        # A context leg whose answer goes on says either of these two.
        reasons: dict[str, Literal["stop", "length"]] = {"stop": "stop", "length": "length", "not_finished": "length"}
        finish = reasons.get(said.finish_reason)
        if finish is None:
            raise RuntimeError(f"TensorRT-LLM ended the sequence with the reason {said.finish_reason!r}.")
        return finish

    def _reported(self, said: Foreign) -> int:
        """How many tokens can be told: with log probabilities, those that have theirs."""
        made = len(said.token_ids)
        if self._request.sampling.logprobs is None:
            return made
        likely = len(said.logprobs or [])
        if self._result.finished and likely < made:
            raise RuntimeError(f"TensorRT-LLM told log probabilities of {likely} of {made} tokens.")
        return min(made, likely)

    def _check_first(self, ids: list[int]) -> None:
        """A generation leg begins with what the context leg drew."""
        first = self._request.first_tokens if self._request.leg is Leg.GENERATION else []
        together = min(len(first), len(ids))
        if ids[:together] != first[:together]:
            raise HandoffFailed("TensorRT-LLM did not begin with the token that the context leg drew.")

    def _stop(self, ids: list[int], finish: str | None) -> int | None:
        stopped = finish == "stop" and ids and ids[-1] in self._request.sampling.stop_token_ids
        return ids[-1] if stopped else None

    def _token(self, said: Foreign, place: int, token: int) -> Token:
        count = self._request.sampling.logprobs
        data = self._vocabulary.data(token)
        if count is None:
            return Token(id=token, data=data)
        entry = said.logprobs[place]
        likely = sorted(entry.items(), key=lambda item: -item[1].logprob)[:count]
        top = [Candidate(other, self._vocabulary.data(other), float(held.logprob)) for other, held in likely]
        return Token(id=token, data=data, logprob=float(entry[token].logprob), top=top)

    def _cached(self, said: Foreign) -> int:
        """A prefix that was handed over is no cached one: a generation leg tells the context leg's."""
        if self._request.leg is Leg.GENERATION:
            return cached_before(said.disaggregated_params, self._library)
        return int(self._result.cached_tokens or 0)

    def _handoff(self, said: Foreign, finish: str | None) -> Foreign:
        if self._request.leg is not Leg.CONTEXT or finish != "length":
            return None
        return wire_params(said.disaggregated_params, self._library)

    # --- the prompt ---

    async def judge_prompt(self) -> None:
        """Work out the prompt's log probabilities, if somebody asked and their logits are there: on a thread."""
        if self._prompt is not None:
            return
        prompt, logits = self._request.prompt, self._result.context_logits
        if logits is None and not self._result.finished and len(prompt) > 1:
            return
        if len(prompt) > 1 and (logits is None or len(logits) < len(prompt) - 1):
            raise RuntimeError("TensorRT-LLM did not tell the logits of the whole prompt.")
        self._prompt = await asyncio.to_thread(self._judged, logits)

    def _judged(self, logits: Foreign | None) -> list[Token]:
        prompt, count = self._request.prompt, self._request.sampling.prompt_logprobs or 0
        first = Token(id=prompt[0], data=self._vocabulary.data(prompt[0]))
        if logits is None:
            return [first]
        # Each row is about the token that follows; the last one, if it is there, about the first that was generated.
        likely = self._library.likelihoods(logits[: len(prompt) - 1], prompt[1:], count)
        return [first, *(self._about(token, *values) for token, values in zip(prompt[1:], likely, strict=True))]

    def _about(self, token: int, logprob: float, top: list[tuple[int, float]]) -> Token:
        candidates = [Candidate(other, self._vocabulary.data(other), value) for other, value in top]
        return Token(id=token, data=self._vocabulary.data(token), logprob=logprob, top=candidates)
