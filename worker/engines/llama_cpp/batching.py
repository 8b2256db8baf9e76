"""The engine thread: continuous batching.

Each step is one batch. A sequence with one token to evaluate has one row in it, always; what room is left goes to the prompts, in
equal parts, so that a long one neither holds up the others nor is held up. Aborts and arrivals are heeded between steps.
"""

from collections import deque
from collections.abc import Sequence
from threading import Event, Lock
from typing import Final, Literal

import structlog

from worker.engines.base import EngineDead, HandoffFailed, Leg, SequenceOutput, Token
from worker.engines.llama_cpp.binding import Context, Row, Weights
from worker.engines.llama_cpp.likelihood import scored
from worker.engines.llama_cpp.outbox import Delivery
from worker.engines.llama_cpp.sampling import TokenSampler, ends
from worker.engines.llama_cpp.sequence import LlamaSequence
from worker.engines.llama_cpp.slots import FreeSlots
from worker.engines.llama_cpp.vocabulary import Vocabulary

_IDLE_SECONDS: Final = 60.0
_log = structlog.get_logger(__name__)

Part = tuple[LlamaSequence, int]
"""A sequence and how many of its pending tokens are in a batch."""


class Batcher:
    """Runs sequences in the slots of a context. `submit`, `wake` and `stop` are for any thread, the rest is the engine thread's."""

    def __init__(
        self, weights: Weights, vocabulary: Vocabulary, context: Context, delivery: Delivery, context_length: int
    ) -> None:
        self._weights = weights
        self._vocabulary = vocabulary
        self._context = context
        self._delivery = delivery
        self._context_length = context_length
        self._lock = Lock()
        self._arrived: list[LlamaSequence] = []
        self._news = Event()
        self._stopping = False
        self._abandoned = False
        self._waiting: deque[LlamaSequence] = deque()
        self._running: list[LlamaSequence] = []
        self._free = FreeSlots(context.slots)

    # --- any thread ---

    def submit(self, sequence: LlamaSequence) -> None:
        """Line a sequence up: its outbox will hear of it. Raises EngineDead if nobody works any more."""
        with self._lock:
            if self._abandoned:
                raise EngineDead("The engine has just ended.")
            self._arrived.append(sequence)
        self._news.set()

    def wake(self) -> None:
        """Look at the sequences: one of them was aborted."""
        self._news.set()

    def stop(self) -> None:
        """End `run`, after the batch being computed or, as it is cancelled, before."""
        self._stopping = True
        self._context.cancel()
        self._news.set()

    # --- the engine thread ---

    def run(self) -> None:
        """Work until stopped, perhaps before it begins. What is raised here is the end of the engine."""
        while not self._stopping:
            if not self._running and not self._waiting:
                self._news.wait(_IDLE_SECONDS)
            self._news.clear()
            self._receive()
            self.step()

    def abandon(self, reason: str, cause: BaseException | None) -> None:
        """Tell every sequence that nothing will come of it any more: EngineDead, for a reason."""
        with self._lock:
            self._abandoned = True
        self._receive()
        for sequence in (*self._running, *self._waiting):
            self._close_sampler(sequence)
            failure = EngineDead(reason)
            failure.__cause__ = cause
            self._delivery.end(sequence.outbox, failure)
        self._running.clear()
        self._waiting.clear()
        self._delivery.flush()

    def step(self) -> None:
        """Drop what was aborted, admit what fits, compute one batch, and deliver."""
        self._drop_aborted()
        self._admit()
        parts = self._parts()
        if parts:
            self._compute(parts)
        self._delivery.flush()

    def _receive(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        self._waiting.extend(arrived)

    def _drop_aborted(self) -> None:
        for sequence in [sequence for sequence in self._running if sequence.aborted]:
            self._release(sequence)
            self._delivery.end(sequence.outbox)
        for sequence in [sequence for sequence in self._waiting if sequence.aborted]:
            self._waiting.remove(sequence)
            self._delivery.end(sequence.outbox)

    def _admit(self) -> None:
        while self._waiting and self._free:
            sequence = self._waiting.popleft()
            fresh = sequence.imported is not None or sequence.scores_prompt
            sequence.slot, kept = self._free.take(sequence.tokens, reuse=not fresh)
            self._running.append(sequence)
            sequence.position = sequence.cached_tokens = kept
            self._context.forget(sequence.slot, kept)
            if sequence.imported is not None:
                self._import(sequence, sequence.imported)

    def _import(self, sequence: LlamaSequence, state: bytes) -> None:
        """Take over a prefill, and evaluate its last token again: sampling needs its logits, as it would have had in one leg."""
        sequence.imported = None
        last = len(sequence.tokens) - 1
        try:
            self._context.import_state(sequence.slot, state)
            if self._context.last_position(sequence.slot) != last:
                raise ValueError("Its cells are not where they should be.")
        except ValueError as error:
            failure = HandoffFailed("llama.cpp does not accept the prefill state.")
            failure.__cause__ = error
            self._fail(sequence, failure)
            return
        self._context.forget(sequence.slot, last)
        sequence.position = last

    def _parts(self) -> list[Part]:
        """What goes into the next batch. The last token of a prompt goes alone, so that its logits do not depend on the chunks."""
        single = [sequence for sequence in self._running if sequence.pending == 1]
        prompts = [sequence for sequence in self._running if sequence.pending > 1]
        shares = fair_shares([sequence.pending - 1 for sequence in prompts], self._context.rows - len(single))
        return [(sequence, 1) for sequence in single] + list(zip(prompts, shares, strict=True))

    def _compute(self, parts: Sequence[Part]) -> None:
        rows: list[Row] = []
        first_rows = []
        for sequence, count in parts:
            first_rows.append(len(rows))
            rows.extend(sequence.rows(count))
        try:
            self._context.evaluate(rows)
        except InterruptedError:
            return  # Only `stop` cancels.
        for (sequence, count), row in zip(parts, first_rows, strict=True):
            try:
                self._follow(sequence, row, count)
            except Exception as error:  # noqa: BLE001 - a bug must not take the other sequences with it
                _log.exception("sequence.crashed", sequence=sequence.request.request_id)
                self._fail(sequence, error)

    def _follow(self, sequence: LlamaSequence, row: int, count: int) -> None:
        """Go on after a sequence's rows were evaluated: note the prompt's scores, or choose the next token."""
        ready = sequence.pending == 1
        if sequence.scores_prompt and not sequence.scored_prompt:
            sequence.scored_prompt.append(self._token(sequence.tokens[0]))
        if sequence.scores_prompt and not ready:
            self._score_prompt(sequence, row, count)
        sequence.position += count
        if ready:
            self._choose(sequence, row)

    def _score_prompt(self, sequence: LlamaSequence, row: int, count: int) -> None:
        alternatives = sequence.request.sampling.prompt_logprobs or 0
        for number in range(count):
            token = sequence.tokens[sequence.position + number + 1]
            sequence.scored_prompt.append(self._token(token, row + number, alternatives))

    def _choose(self, sequence: LlamaSequence, row: int) -> None:
        sampling = sequence.request.sampling
        if sampling.max_tokens == 0:
            self._deliver(sequence, [], "length")
            return
        if sequence.sampler is None:
            sequence.sampler = self._new_sampler(sequence)
        chosen = sequence.sampler.sample(self._context, row)
        if sequence.output_tokens == 0 and sequence.request.first_tokens[:1] not in ([], [chosen]):
            self._fail(
                sequence, HandoffFailed("The prefill state leads to another first token than the context leg had.")
            )
            return
        sequence.tokens.append(chosen)
        stopped = chosen in sampling.stop_token_ids
        ended = ends(sampling, self._vocabulary, chosen, constrained=bool(sequence.gbnf))
        token = self._token(
            chosen, row if sampling.logprobs is not None else None, sampling.logprobs or 0, mute=stopped
        )
        reason = "stop" if stopped or ended else sequence.used_up(self._context_length)
        self._deliver(sequence, [token], reason, chosen if stopped and not ended else None)

    def _token(self, token: int, row: int | None = None, alternatives: int = 0, *, mute: bool = False) -> Token:
        """A token as it is reported, scored by the logits of a row of the last batch."""
        text = b"" if mute else self._vocabulary.text_of(token)
        if row is None:
            return Token(id=token, data=text)
        return scored(token, text, self._context.logits(row), alternatives, self._vocabulary.bytes)

    def _new_sampler(self, sequence: LlamaSequence) -> TokenSampler:
        request = sequence.request
        return TokenSampler(
            self._weights,
            self._vocabulary,
            request.prompt,
            request.sampling,
            sequence.seed,
            sequence.gbnf,
            self._context_length,
        )

    def _deliver(
        self,
        sequence: LlamaSequence,
        tokens: list[Token],
        reason: Literal["stop", "length"] | None,
        stop_token: int | None = None,
    ) -> None:
        handed_over = sequence.request.leg == Leg.CONTEXT and reason == "length"
        output = SequenceOutput(
            tokens=tokens,
            finish_reason=reason,
            stop_token=stop_token,
            cached_tokens=sequence.cached_tokens if sequence.begins else 0,
            prompt=sequence.scored_prompt if sequence.begins else [],
            # As llama.cpp writes it: framing and checksum are not the engine thread's work.
            state=self._context.export_state(sequence.slot) if handed_over else None,
        )
        if reason is not None:
            self._release(sequence)
        self._delivery.put(sequence.outbox, output)

    def _fail(self, sequence: LlamaSequence, failure: Exception) -> None:
        self._release(sequence, keep=False)
        self._delivery.end(sequence.outbox, failure)

    def _release(self, sequence: LlamaSequence, *, keep: bool = True) -> None:
        """Free a sequence's slot. What it holds may serve a later prompt, unless there is doubt about it."""
        self._close_sampler(sequence)
        self._running.remove(sequence)
        if not keep:
            self._context.forget(sequence.slot)
        self._free.give(sequence.slot, sequence.tokens[: sequence.position] if keep else ())

    def _close_sampler(self, sequence: LlamaSequence) -> None:
        if sequence.sampler is not None:
            sequence.sampler.close()
            sequence.sampler = None


def fair_shares(wanted: Sequence[int], room: int) -> list[int]:
    """What each gets of the room: as equal as can be, none more than wanted, nothing left over while somebody wants it."""
    shares = [0] * len(wanted)
    waiting = len(wanted)
    for number in sorted(range(len(wanted)), key=wanted.__getitem__):
        shares[number] = min(wanted[number], room // waiting)
        room -= shares[number]
        waiting -= 1
    return shares
