"""The scripted engine: requests in, tokens out when they are due, one timer for all."""

import math
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct, structs

from worker.engines.base import (
    Capability,
    Engine,
    EngineDead,
    EngineError,
    EngineFacts,
    EngineRefused,
    HandoffFailed,
    Leg,
    SequenceOutput,
    SequenceRequest,
)
from worker.engines.scripted.clock import Clock, LoopClock, Timer
from worker.engines.scripted.model import (
    CHAT_TEMPLATE,
    MARKERS,
    VOCABULARY_SIZE,
    Answer,
    answer_key,
    prompt_digest,
    text_of,
    token_bytes,
    tokenize,
)
from worker.engines.scripted.script import Script, ScriptError, markers_in, read_script
from worker.engines.scripted.sequence import ScriptedSequence
from worker.engines.scripted.state import State, read_state, write_state

NAME: Final = "scripted"
CAPABILITIES: Final = frozenset(
    {
        Capability.LOGPROBS,
        Capability.PROMPT_LOGPROBS,
        Capability.JSON,
        Capability.LOGIT_BIAS,
        Capability.HANDOFF,
    }
)
REMEMBERED_ABORTS: Final = 4096
"""How many aborted ids are kept for tests to look at."""


class Settings(Struct, frozen=True, kw_only=True):
    """The options of the engine alone, beside those of `Script`.

    `context_length`: tokens of prompt and output together. `max_batch_size`: sequences that run at once; others wait their turn,
    first come, first served. `tick_ms`: tokens due within this of each other come together, so that sequences share wake-ups.
    `state_bytes_per_token`: padding of the hand-off state, to weigh what a real one does. `start_fails`: a sentence that `start`
    fails with.
    """

    context_length: Annotated[int, Meta(ge=2)] = 8192
    max_batch_size: Annotated[int, Meta(ge=1)] = 256
    tick_ms: Annotated[float, Meta(ge=0)] = 1.0
    state_bytes_per_token: Annotated[int, Meta(ge=0)] = 0
    start_fails: str | None = None


def create(model: str | None, options: Mapping[str, str]) -> "ScriptedEngine":
    """The engine, serving under the name `model` ("scripted" if None). Unknown options are an EngineError that names them."""
    names = Settings.__struct_fields__
    try:
        settings = msgspec.convert({key: options[key] for key in options if key in names}, Settings, strict=False)
        script = read_script({key: options[key] for key in options if key not in names})
    except ValueError as error:
        raise EngineError(f"An option of the engine '{NAME}' is wrong: {error}") from error
    return ScriptedEngine(model or NAME, settings, script, LoopClock())


class ScriptedEngine(Engine):
    """The engine. `aborted` lists the ids of sequences that were ended before their time, oldest first; `live` counts those that
    run or wait.
    """

    def __init__(self, model: str, settings: Settings, script: Script, clock: Clock) -> None:
        self.aborted: deque[str] = deque(maxlen=REMEMBERED_ABORTS)
        self._model = model
        self._settings = settings
        self._script = script
        self._clock = clock
        self._sequences: dict[str, ScriptedSequence] = {}
        self._running: dict[str, ScriptedSequence] = {}
        self._waiting: dict[str, ScriptedSequence] = {}
        self._timer: Timer | None = None
        self._timer_due = math.inf
        self._dead = "The engine is not started."

    @property
    def live(self) -> int:
        return len(self._running) + len(self._waiting)

    async def start(self) -> EngineFacts:
        if self._settings.start_fails:
            raise EngineError(self._settings.start_fails)
        self._dead = ""
        return EngineFacts(
            engine=NAME,
            model=self._model,
            context_length=self._settings.context_length,
            vocabulary_size=VOCABULARY_SIZE,
            max_batch_size=self._settings.max_batch_size,
            capabilities=CAPABILITIES,
            chat_template=CHAT_TEMPLATE,
            bos=MARKERS[0],
            eos=MARKERS[2],
        )

    async def generate(self, request: SequenceRequest) -> AsyncGenerator[SequenceOutput, None]:
        sequence = self._accept(request)
        try:
            while (output := await sequence.next()) is not None:
                if output.finish_reason == "length" and request.leg is Leg.CONTEXT:
                    output = structs.replace(output, state=self._state(sequence))
                yield output
                if output.finish_reason:
                    return
        finally:
            self.abort(request.request_id)
            self._sequences.pop(request.request_id, None)

    def abort(self, request_id: str) -> None:
        sequence = self._sequences.get(request_id)
        if sequence is not None and not sequence.over:
            self.aborted.append(request_id)
            sequence.drop()
            self._leave(sequence)

    async def close(self) -> None:
        for request_id in list(self._sequences):
            self.abort(request_id)
        self._cancel_timer()
        self._dead = self._dead or "The engine is closed."

    def tokenize(self, text: str, *, special: bool, add_special: bool) -> list[int]:
        return tokenize(text, special=special, add_special=add_special)

    def token_bytes(self, token: int) -> bytes:
        return token_bytes(token)

    def check(self) -> None:
        if self._dead:
            raise EngineDead(self._dead)

    # --- taking a request ---

    def _accept(self, request: SequenceRequest) -> ScriptedSequence:
        self.check()
        script = self._script_of(request)
        if script.refuse is not None:
            raise EngineRefused(script.refuse)
        key = answer_key(self._model, request, self._seed(request))
        if request.leg is Leg.GENERATION:
            key = self._handed_over(request, script)
        room = self._settings.context_length - len(request.prompt)
        sampling = structs.replace(request.sampling, max_tokens=min(request.sampling.max_tokens, room))
        sequence = ScriptedSequence(request, script, key, Answer(key, sampling, script))
        self._sequences[request.request_id] = sequence
        self._waiting[request.request_id] = sequence
        self._admit()
        return sequence

    def _script_of(self, request: SequenceRequest) -> Script:
        """The engine's script, changed by the prompt's markers."""
        text = text_of(request.prompt)
        try:
            markers = markers_in(text, request.leg) if "[[" in text else {}
            return read_script({**_as_options(self._script), **markers}) if markers else self._script
        except ScriptError as error:
            raise EngineRefused(str(error)) from error

    def _seed(self, request: SequenceRequest) -> int:
        seed = request.sampling.seed
        return secrets.randbits(63) if seed is None else seed

    def _admit(self) -> None:
        """Give free slots to those who wait."""
        while self._waiting and len(self._running) < self._settings.max_batch_size:
            request_id = next(iter(self._waiting))
            sequence = self._waiting.pop(request_id)
            self._running[request_id] = sequence
            # A generation leg has its prefill behind it.
            handed_over = sequence.request.leg is Leg.GENERATION
            wait = sequence.script.itl_ms if handed_over else sequence.script.ttft_ms
            sequence.due = self._clock.now() + wait / 1000
        self._schedule()

    def _leave(self, sequence: ScriptedSequence) -> None:
        self._waiting.pop(sequence.request.request_id, None)
        if self._running.pop(sequence.request.request_id, None) is not None:
            self._admit()

    # --- the schedule ---

    def _schedule(self) -> None:
        """Set the one timer to the next token that is due."""
        due = min((sequence.due for sequence in self._running.values() if sequence.due is not None), default=math.inf)
        if due == self._timer_due and self._timer is not None:
            return
        self._cancel_timer()
        if due < math.inf:
            self._timer_due = due
            self._timer = self._clock.call_later(max(0.0, due - self._clock.now()), self._tick)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_due = None, math.inf

    def _tick(self) -> None:
        """Every sequence whose token is due gets it."""
        self._timer, self._timer_due = None, math.inf
        horizon = self._clock.now() + self._settings.tick_ms / 1000
        for sequence in list(self._running.values()):
            if sequence.due is not None and sequence.due <= horizon and not sequence.over:
                self._step(sequence)
        self._schedule()

    def _step(self, sequence: ScriptedSequence) -> None:
        if self._fault(sequence):
            return
        said = sequence.answer.say()
        if sequence.request.leg is Leg.CONTEXT and not said.finish_reason:
            said = said._replace(finish_reason="length")
        sequence.add(said)
        if sequence.over:
            self._leave(sequence)
        elif sequence.due is not None:
            # From when it was due, not from now: a late tick does not slow a sequence down.
            sequence.due += sequence.script.itl_ms / 1000

    def _fault(self, sequence: ScriptedSequence) -> bool:
        """Do what the script wants instead of the next token."""
        script, position = sequence.script, sequence.answer.position
        if script.die_after == position:
            self._die()
        elif script.raise_after == position:
            sequence.fail(RuntimeError("The script of the scripted engine says so."))
            self._leave(sequence)
        elif script.silence_after == position:
            sequence.due = None
        else:
            return False
        return True

    def _die(self) -> None:
        self._dead = "The scripted engine has died, as it was told to."
        for sequence in self._sequences.values():
            if not sequence.over:
                sequence.fail(EngineDead(self._dead))
        self._waiting.clear()
        self._running.clear()

    # --- the hand-off ---

    def _state(self, sequence: ScriptedSequence) -> bytes:
        prompt = sequence.request.prompt
        padding = bytes(self._settings.state_bytes_per_token * len(prompt))
        return write_state(State(model=self._model, prompt=prompt_digest(prompt), key=sequence.key, padding=padding))

    def _handed_over(self, request: SequenceRequest, script: Script) -> bytes:
        """The answer's key out of a context leg's state, if that is what it must be."""
        if script.lose_state:
            raise HandoffFailed("The hand-off state is lost.")
        state = read_state(request.state or b"")
        if (state.model, state.prompt) != (self._model, prompt_digest(request.prompt)):
            raise HandoffFailed("The hand-off state is of another model or prompt.")
        first = Answer(state.key, request.sampling, script).say().token.id
        if request.first_tokens[:1] not in ([], [first]):
            raise HandoffFailed("The hand-off state leads to another first token.")
        return state.key


def _as_options(script: Script) -> dict[str, object]:
    """A script as what it can be read from again."""
    return {name: value for name, value in structs.asdict(script).items() if value is not None}
