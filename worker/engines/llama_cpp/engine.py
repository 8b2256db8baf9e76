"""llama.cpp behind the engine contract: the asyncio side."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread
from typing import Final

import structlog
from msgspec import Struct, structs

from worker.engines.base import (
    Capability,
    Engine,
    EngineDead,
    EngineError,
    EngineFacts,
    EngineRefused,
    Leg,
    SequenceOutput,
    SequenceRequest,
)
from worker.engines.llama_cpp import self_check
from worker.engines.llama_cpp.batching import Batcher
from worker.engines.llama_cpp.binding import BUILD, CACHE_BYTES, Context, Weights
from worker.engines.llama_cpp.options import LlamaOptions, served_name
from worker.engines.llama_cpp.outbox import Delivery, Outbox
from worker.engines.llama_cpp.probing import GrammarProbe, probe_command
from worker.engines.llama_cpp.sampling import check_sampling
from worker.engines.llama_cpp.sequence import LlamaSequence
from worker.engines.llama_cpp.state import Header, StateLayout, fingerprint, pack_state, prompt_digest, unpack_state
from worker.engines.llama_cpp.vocabulary import Vocabulary

NAME: Final = "llama_cpp"
CLOSE_SECONDS: Final = 10.0
"""How long `close` waits for the engine thread; a batch being computed is cancelled, which takes milliseconds."""
_CLOSED: Final = "The engine is closed."
_CAPABILITIES: Final = frozenset(Capability)
_log = structlog.get_logger(__name__)


class _Loaded(Struct, frozen=True):
    """What is there once the model is loaded."""

    vocabulary: Vocabulary
    batcher: Batcher
    delivery: Delivery
    facts: EngineFacts
    layout: StateLayout | None
    fingerprint: str


class LlamaCppEngine(Engine):
    """One model, one thread that computes, and any number of sequences that wait for a slot in the order in which they came."""

    def __init__(self, path: Path, options: LlamaOptions) -> None:
        self._path = path
        self._options = options
        self._live: dict[str, LlamaSequence] = {}
        self._probe = GrammarProbe(probe_command(path))
        self._thread: Thread | None = None
        self._closing = Event()
        self._batcher: Batcher | None = None
        self._loaded: _Loaded | None = None
        self._death: str | None = "The engine has not been started."

    # --- life ---

    async def start(self) -> EngineFacts:
        delivery = Delivery(asyncio.get_running_loop())
        ready: Future[_Loaded] = Future()
        self._thread = Thread(target=self._main, args=(delivery, ready), name="llama_cpp", daemon=True)
        self._thread.start()
        # Shielded: the thread sets the result whether or not somebody still waits for it.
        self._loaded = await asyncio.shield(asyncio.wrap_future(ready))
        return self._loaded.facts

    def check(self) -> None:
        if self._closing.is_set():
            raise EngineDead(_CLOSED)
        if self._death is not None:
            raise EngineDead(self._death)

    async def close(self) -> None:
        self._loaded = None
        self._closing.set()
        if self._batcher is not None:
            self._batcher.stop()
        await self._probe.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join, CLOSE_SECONDS)
            if thread.is_alive():
                _log.error("engine.close_timed_out", seconds=CLOSE_SECONDS)

    # --- the engine thread ---

    def _main(self, delivery: Delivery, ready: "Future[_Loaded]") -> None:
        try:
            context, loaded = self._load(delivery)
        except Exception as error:  # noqa: BLE001 - raised by `start`
            ready.set_exception(error)
            return
        # `close` looks at it after it has set `_closing`: one of the two sees the other.
        self._batcher = loaded.batcher
        if self._closing.is_set():
            loaded.batcher.stop()
        self._death = None
        ready.set_result(loaded)
        cause: Exception | None = None
        try:
            loaded.batcher.run()
        except Exception as error:  # noqa: BLE001 - raised by `check`, and where sequences are read
            _log.exception("engine.died")
            cause, self._death = error, "The engine's thread has died."
        finally:
            loaded.batcher.abandon(self._death or _CLOSED, cause)
            context.close()

    def _load(self, delivery: Delivery) -> tuple[Context, _Loaded]:
        weights = Weights(self._path)
        vocabulary = Vocabulary(weights)
        length = self._context_length(weights)
        options = self._options
        context = Context(weights, slots=options.slots, length=length, rows=options.chunk, threads=options.threads)
        try:
            found = self_check.check(context, vocabulary.size)
            batcher = Batcher(weights, vocabulary, context, delivery, length)
            facts = self._facts(weights, vocabulary, length, found)
            return context, _Loaded(vocabulary, batcher, delivery, facts, found.layout, fingerprint(self._path))
        except BaseException:
            context.close()
            raise

    def _context_length(self, weights: Weights) -> int:
        own, asked = weights.context_length, self._options.context_length
        if asked is not None and asked > own:
            raise EngineError(f"The option 'context_length' ({asked}) is more than the model was made for ({own}).")
        affordable = CACHE_BYTES // (weights.cache_bytes_per_token * self._options.slots)
        return asked or max(2, min(own, affordable))

    def _facts(self, weights: Weights, vocabulary: Vocabulary, length: int, found: self_check.Findings) -> EngineFacts:
        if not found.can_hand_off:
            # Nothing else depends on it: answers are as good, only not the same whatever runs beside them.
            _log.warning("engine.no_handoff", exact=found.exact, layout_known=found.layout is not None, build=BUILD)
        return EngineFacts(
            engine=NAME,
            model=served_name(self._path),
            context_length=length,
            vocabulary_size=vocabulary.size,
            max_batch_size=self._options.slots,
            capabilities=_CAPABILITIES - (frozenset() if found.can_hand_off else {Capability.HANDOFF}),
            chat_template=weights.metadata("tokenizer.chat_template") or "",
            bos=vocabulary.bos,
            eos=vocabulary.eos,
        )

    # --- requests ---

    async def generate(self, request: SequenceRequest) -> AsyncGenerator[SequenceOutput, None]:
        loaded = self._ready()
        self._check(request, loaded)
        sequence = LlamaSequence(request, Outbox())
        self._live[request.request_id] = sequence
        try:
            await self._prepare(sequence, loaded)
            if sequence.aborted:
                return
            self._ready().batcher.submit(sequence)
            while (output := await self._next(sequence.outbox, loaded.delivery)) is not None:
                yield await self._framed(sequence, output, loaded)
                if output.finish_reason is not None:
                    return
        finally:
            sequence.aborted = True
            if self._live.get(request.request_id) is sequence:
                del self._live[request.request_id]
            loaded.batcher.wake()

    def abort(self, request_id: str) -> None:
        sequence, loaded = self._live.get(request_id), self._loaded
        if sequence is not None:
            sequence.aborted = True
            if loaded is not None:
                loaded.batcher.wake()

    async def _next(self, outbox: Outbox, delivery: Delivery) -> SequenceOutput | None:
        """What is new, once something is; None after an abort."""
        while True:
            await outbox.arrived.wait()
            outbox.arrived.clear()
            output = delivery.take(outbox)
            if outbox.ended:
                # What it ended with is told after what was said before.
                outbox.arrived.set()
            if output is not None or outbox.ended:
                return output

    def tokenize(self, text: str, *, special: bool, add_special: bool) -> list[int]:
        return self._ready().vocabulary.tokenize(text, special=special, add_special=add_special)

    def fewest_tokens(self, text: str, enough: int) -> int:
        return self._ready().vocabulary.fewest_tokens(text, enough)

    def token_bytes(self, token: int) -> bytes:
        vocabulary = self._ready().vocabulary
        return vocabulary.bytes[token] if vocabulary.holds([token]) else b""

    def _ready(self) -> _Loaded:
        self.check()
        loaded = self._loaded
        if loaded is None:
            raise EngineDead(_CLOSED)
        return loaded

    def _check(self, request: SequenceRequest, loaded: _Loaded) -> None:
        """What the caller promises and llama.cpp would not survive, and what only this engine can know."""
        if not request.prompt or len(request.prompt) >= loaded.facts.context_length:
            raise EngineRefused(f"A prompt has 1 to {loaded.facts.context_length - 1} tokens.", "prompt")
        if not loaded.vocabulary.holds(request.prompt):
            raise EngineRefused("The prompt has token ids that this model does not have.", "prompt")
        check_sampling(request.sampling, loaded.vocabulary)

    async def _prepare(self, sequence: LlamaSequence, loaded: _Loaded) -> None:
        """What takes a while, and no engine thread: the constraint, the state."""
        request = sequence.request
        if request.sampling.constraint is not None:
            sequence.gbnf = await self._probe.gbnf(request.sampling.constraint)
        if request.leg == Leg.BOTH:
            return
        if Capability.HANDOFF not in loaded.facts.capabilities or loaded.layout is None:
            raise EngineRefused("This engine cannot hand prefill state over on this machine.", "disaggregated_params")
        if request.leg == Leg.GENERATION:
            state, header = await asyncio.to_thread(
                unpack_state,
                request.state or b"",
                request.prompt,
                loaded.fingerprint,
                loaded.layout,
                self._options.slots,
            )
            sequence.imported = state
            if request.sampling.seed is None:
                sequence.seed = header.seed

    async def _framed(self, sequence: LlamaSequence, output: SequenceOutput, loaded: _Loaded) -> SequenceOutput:
        """The output as others may read it: what llama.cpp wrote of the slot becomes a state."""
        if output.state is None:
            return output
        prompt = sequence.request.prompt
        header = Header(
            build=BUILD, model=loaded.fingerprint, tokens=len(prompt), prompt=prompt_digest(prompt), seed=sequence.seed
        )
        return structs.replace(output, state=await asyncio.to_thread(pack_state, output.state, header))
