"""The events of one request: its plan, its sequences, its usage. Three ways, by the leg that is asked for."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import structs

from schemas.disagg import DisaggregatedParams
from schemas.events import Delta, Done, Event, Handoff, Started
from schemas.openai.chat import ChatCompletionRequest
from schemas.openai.completions import CompletionRequest
from schemas.openai.errors import ServingError, invalid
from schemas.openai.usage import PromptTokensDetails, Usage, usage_of
from worker.engines.base import (
    Capability,
    Engine,
    EngineError,
    EngineFacts,
    HandoffFailed,
    Leg,
    SequenceOutput,
    SequenceRequest,
    Token,
)
from worker.fields import require
from worker.handoff import Reason
from worker.legs import (
    Handoffs,
    Prefill,
    first_tokens_of,
    is_early,
    leg_of,
    params_of,
    replayed,
    usage_before,
    with_prompt,
)
from worker.metrics import Counters
from worker.output import SequenceReader
from worker.plan import Plan, SequencePlan, plan_chat, plan_completion
from worker.run import Run
from worker.sequence import HANDOFF_FAILED, LiveSequence, interleave, told

Request = ChatCompletionRequest | CompletionRequest
Batches = AsyncGenerator[list[Event], None]


class Answer:
    """Answers one request. `batches` is read once."""

    def __init__(self, engine: Engine, facts: EngineFacts, handoffs: Handoffs, counters: Counters, run: Run) -> None:
        self._engine = engine
        self._facts = facts
        self._handoffs = handoffs
        self._counters = counters
        self._run = run

    async def batches(self, request: Request) -> Batches:
        """Started first, then Deltas, Done last; raises ServingError (see `worker.service`)."""
        params = params_of(request)
        leg = leg_of(params)
        # Rendering and tokenising a long prompt would hold up everybody else's tokens.
        try:
            plan = await asyncio.to_thread(self._plan, request)
        except EngineError as error:
            # Its tokenizer may be gone with the engine.
            raise told(error) from error
        if params is None or leg is Leg.BOTH:
            way = self._whole(plan)
        else:
            _check_leg(self._facts, plan, request, leg)
            way = self._context(params, plan) if leg is Leg.CONTEXT else self._generation(params, plan)
        async with aclosing(way):
            async for batch in way:
                yield batch

    def _plan(self, request: Request) -> Plan:
        if isinstance(request, ChatCompletionRequest):
            return plan_chat(request, self._engine, self._facts)
        return plan_completion(request, self._engine, self._facts)

    # --- one worker does it all ---

    async def _whole(self, plan: Plan) -> Batches:
        sequences = [self._live(sequence) for sequence in plan.sequences]
        events = self._events(sequences, plan)
        if plan.candidates == plan.n:
            async with aclosing(events):
                async for batch in events:
                    yield batch
            return
        made = [event async for batch in events for event in batch]
        yield _best(made, plan, [sequence.mean_logprob for sequence in sequences])

    def _live(self, sequence: SequencePlan) -> LiveSequence:
        if sequence.settled is not None:
            return self._settled(sequence)
        request = SequenceRequest(request_id=self._name(sequence), prompt=sequence.prompt, sampling=sequence.sampling)
        return self._sequence(sequence, self._engine.generate(request))

    # --- the context leg ---

    async def _context(self, params: DisaggregatedParams, plan: Plan) -> Batches:
        """One token of the answer, or all of it if that is all; Done says where to go on."""
        sequence = plan.sequences[0]
        request = SequenceRequest(
            request_id=self._name(sequence),
            prompt=sequence.prompt,
            sampling=structs.replace(sequence.sampling, max_tokens=1),
            leg=Leg.CONTEXT,
            handoff=params,
        )
        # The prompt's echo is the generation leg's to give, with the log probabilities that are kept for it.
        whole = structs.replace(sequence, output=structs.replace(sequence.output, prompt_only=False))
        live = self._sequence(whole, self._engine.generate(request), keep_outputs=True)
        events = [event async for batch in self._events([live], plan) for event in batch]
        for event in events:
            if isinstance(event, Done):
                handoff = await self._hand_over(params, sequence, live, event.usage)
                event.handoff = Handoff(params=handoff, prompt_token_ids=sequence.prompt)
        yield events

    async def _hand_over(
        self, params: DisaggregatedParams, sequence: SequencePlan, live: LiveSequence, usage: Usage
    ) -> DisaggregatedParams:
        state = live.state if live.pending else None
        prefill = Prefill(outputs=live.kept, usage=usage, state=state, echo=sequence.output.echo)
        if live.pending and live.handoff is not None:
            return self._handoffs.told_by_engine(params, live.handoff)
        if live.pending and prefill.state is None:
            raise told(HandoffFailed("The engine reported no state."))
        if prefill.state is None and (self._native or not is_early(params)):
            return self._handoffs.unkept(params, prefill)
        # A generation leg that was started with this one waits for something, even if the answer is complete.
        self._run.handle, handed = await self._handoffs.keep(params, sequence.prompt, prefill, self._run.request_id)
        return handed

    # --- the generation leg ---

    async def _generation(self, params: DisaggregatedParams, plan: Plan) -> Batches:
        """The whole answer, going on from where the context leg was."""
        sequence = plan.sequences[0]
        if self._native:
            self._handoffs.take_over(params)
            events = self._events([self._taken_over(params, sequence)], plan, params.ctx_usage or None)
        else:
            prefill = await self._handoffs.fetch(params, sequence.prompt)
            events = self._events([self._continued(params, sequence, prefill)], plan, usage_before(params, prefill))
        try:
            async with aclosing(events):
                async for batch in events:
                    yield batch
        except ServingError as error:
            if error.code == HANDOFF_FAILED:
                self._handoffs.failed(Reason.ENGINE)
            raise

    def _continued(self, params: DisaggregatedParams, sequence: SequencePlan, prefill: Prefill) -> LiveSequence:
        sequence = structs.replace(sequence, output=structs.replace(sequence.output, echo=prefill.echo))
        if sequence.output.prompt_only:
            return self._settled(sequence, prefill.prompt)
        if prefill.state is None:
            return self._sequence(sequence, replayed(prefill.outputs))
        request = SequenceRequest(
            request_id=self._name(sequence),
            prompt=sequence.prompt,
            # Only the context leg saw the prompt go by.
            sampling=structs.replace(sequence.sampling, prompt_logprobs=None),
            leg=Leg.GENERATION,
            state=prefill.state,
            first_tokens=first_tokens_of(params, prefill),
        )
        return self._sequence(sequence, with_prompt(self._engine.generate(request), prefill.prompt))

    def _taken_over(self, params: DisaggregatedParams, sequence: SequencePlan) -> LiveSequence:
        """The same where the engines hand over between themselves."""
        request = SequenceRequest(
            request_id=self._name(sequence),
            prompt=sequence.prompt,
            sampling=sequence.sampling,
            leg=Leg.GENERATION,
            first_tokens=params.first_gen_tokens or [],
            handoff=params,
        )
        return self._sequence(sequence, self._engine.generate(request))

    @property
    def _native(self) -> bool:
        return self._facts.native_handoff is not None

    # --- all of them ---

    async def _events(self, sequences: list[LiveSequence], plan: Plan, before: Usage | None = None) -> Batches:
        """The events of sequences that run here. `before` is the context leg's usage, if the prompt was read there."""
        counted = _Counted(sequences, plan, before)
        started = False
        try:
            async with aclosing(interleave([sequence.deltas() for sequence in sequences])) as batches:
                async for deltas in batches:
                    batch: list[Event] = [] if started else [counted.started()]
                    started = True
                    batch.extend(deltas)
                    if all(sequence.finish_reason for sequence in sequences):
                        yield [*batch, Done(usage=counted.usage())]
                        return
                    if batch:
                        yield batch
        finally:
            counted.add_to(self._counters)

    def _sequence(
        self, sequence: SequencePlan, outputs: AsyncGenerator[SequenceOutput, None], *, keep_outputs: bool = False
    ) -> LiveSequence:
        reader = SequenceReader(sequence.index, sequence.output)
        return LiveSequence(self._name(sequence), outputs, self._engine.abort, reader, keep_outputs=keep_outputs)

    def _settled(self, sequence: SequencePlan, prompt: list[Token] | None = None) -> LiveSequence:
        """A sequence of no tokens: the engine has nothing to do."""
        return self._sequence(sequence, replayed([SequenceOutput(prompt=prompt or [], finish_reason="length")]))

    def _name(self, sequence: SequencePlan) -> str:
        return f"{self._run.key}.{sequence.index}"


class _Counted:
    """The tokens of one request: of each prompt once, however many choices it has, and of every sequence."""

    def __init__(self, sequences: list[LiveSequence], plan: Plan, before: Usage | None) -> None:
        self._sequences = sequences
        self._first = sequences[:: plan.candidates]
        self._prompt_tokens = plan.prompt_tokens
        self._before = before

    def started(self) -> Started:
        usage = self.usage()
        return Started(created=int(time.time()), prompt_tokens=usage.prompt_tokens, cached_tokens=_cached(usage))

    def usage(self) -> Usage:
        """The counts so far; the prompt's are the context leg's where there was one (a transferred prefix is not a cached one)."""
        made = sum(sequence.tokens for sequence in self._sequences)
        if self._before is not None:
            return usage_of(self._before.prompt_tokens, made, _cached(self._before))
        return usage_of(self._prompt_tokens, made, sum(sequence.cached_tokens for sequence in self._first))

    def add_to(self, counters: Counters) -> None:
        usage = self.usage()
        counters.completion_tokens += usage.completion_tokens
        if self._before is None:
            counters.prompt_tokens += usage.prompt_tokens
            counters.cached_tokens += _cached(usage)


def _cached(usage: Usage) -> int:
    details = usage.prompt_tokens_details
    return details.cached_tokens if isinstance(details, PromptTokensDetails) else 0


def _best(events: list[Event], plan: Plan, scores: list[float]) -> list[Event]:
    """The events of the best candidates, as choices 0, 1 and so on."""
    choices = {plan.sequences[position].index: choice for choice, position in enumerate(plan.best(scores))}
    best: list[Event] = []
    for event in events:
        if not isinstance(event, Delta):
            best.append(event)
        elif event.index in choices:
            best.append(structs.replace(event, index=choices[event.index]))
    return best


def _check_leg(facts: EngineFacts, plan: Plan, request: Request, leg: Leg) -> None:
    """One prompt, one choice: a hand-off is of one sequence."""
    require(facts, Capability.HANDOFF, "disaggregated_params")
    if len(plan.prompts) > 1:
        raise invalid("A disaggregated request takes one prompt.", "prompt")
    if plan.candidates > 1:
        raise invalid("A disaggregated request takes one choice.", "n" if plan.n > 1 else "best_of")
    if leg is Leg.CONTEXT and request.stream is True:
        raise invalid("A context leg cannot be streamed.", "stream")
    if facts.native_handoff is not None:
        _check_native(plan.sequences[0])


def _check_native(sequence: SequencePlan) -> None:
    """What only the context leg could tell has no place in an engine's own hand-off."""
    if sequence.sampling.prompt_logprobs is not None:
        raise invalid("Log probabilities of an echoed prompt cannot be handed over.", "echo")
    if sequence.output.prompt_only:
        raise invalid("A disaggregated request generates at least one token.", "max_tokens")
