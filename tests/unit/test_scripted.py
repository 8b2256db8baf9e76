"""The scripted engine's own promises: its schedule, its script, its faults. What every engine promises is in tests/contract."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec import structs

from worker.engines import ENGINES, create_engine
from worker.engines.base import (
    Constraint,
    EngineDead,
    EngineError,
    EngineRefused,
    HandoffFailed,
    Leg,
    Sampling,
    SequenceOutput,
    SequenceRequest,
)
from worker.engines.scripted import ScriptedEngine, Settings, create
from worker.engines.scripted.model import tokenize
from worker.engines.scripted.schema_instance import NoInstance, instance_of
from worker.engines.scripted.script import read_script


class HandClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[_HandTimer] = []

    def now(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], None]) -> "_HandTimer":
        timer = _HandTimer(self._now + delay, callback)
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Let time pass, and everything happen that is due in it."""
        end = self._now + seconds
        while due := [timer for timer in self._timers if timer.callback and timer.when <= end]:
            first = min(due, key=lambda timer: timer.when)
            self._timers.remove(first)
            self._now = max(self._now, first.when)
            assert first.callback
            first.callback()
        self._now = end

    def stall(self, seconds: float) -> None:
        """Let time pass while nothing happens, as on a busy machine."""
        self._now += seconds

    @property
    def pending(self) -> int:
        """How many timers are set."""
        return sum(timer.callback is not None for timer in self._timers)


class _HandTimer:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


def asked(prompt: str, id_: str = "a", **fields: Any) -> SequenceRequest:
    """A greedy request. Any: fields of the sampling, `leg`, `state` and `first_tokens` apart."""
    whole = {name: fields.pop(name) for name in ("leg", "state", "first_tokens") if name in fields}
    sampling = Sampling(**{"max_tokens": 100, "temperature": 0.0, **fields})
    return SequenceRequest(
        request_id=id_, prompt=tokenize(prompt, special=True, add_special=False), sampling=sampling, **whole
    )


async def engine_of(**options: str) -> ScriptedEngine:
    """A started engine."""
    engine = create(None, options)
    await engine.start()
    return engine


async def on_clock(**options: Any) -> tuple[ScriptedEngine, HandClock]:
    """A started engine whose time a test moves; options of the engine and of the script. Any: they are of several types."""
    clock = HandClock()
    own = {name: options.pop(name) for name in tuple(options) if name in Settings.__struct_fields__}
    engine = ScriptedEngine("scripted", Settings(**own), read_script(options), clock)
    await engine.start()
    return engine, clock


class Following:
    """A sequence that is read as soon as something comes."""

    def __init__(self, engine: ScriptedEngine, request: SequenceRequest) -> None:
        self.outputs: list[SequenceOutput] = []
        self.task = asyncio.create_task(self._follow(engine.generate(request)), name=request.request_id)

    async def _follow(self, outputs: AsyncGenerator[SequenceOutput, None]) -> None:
        async for output in outputs:
            self.outputs.append(output)

    @property
    def tokens(self) -> int:
        return sum(len(output.tokens) for output in self.outputs)


async def settled() -> None:
    """Let every task that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def read(engine: ScriptedEngine, request: SequenceRequest) -> list[SequenceOutput]:
    """All outputs of a request."""
    return [output async for output in engine.generate(request)]


async def said(engine: ScriptedEngine, request: SequenceRequest) -> bytes:
    """The bytes of a whole answer."""
    return b"".join(token.data for output in await read(engine, request) for token in output.tokens)


class TestSchedule:
    async def test_times(self) -> None:
        """The first token comes after ttft_ms, each later one after itl_ms."""
        engine, clock = await on_clock(ttft_ms=50, itl_ms=10)
        one = Following(engine, asked("hi"))
        await settled()
        seen = []
        for seconds in (0.048, 0.002, 0.010, 0.010):
            clock.advance(seconds)
            await settled()
            seen.append(one.tokens)

        assert seen == [0, 1, 2, 3]
        one.task.cancel()

    async def test_late_tick(self) -> None:
        """A late tick does not slow a sequence down: what was due comes."""
        engine, clock = await on_clock(itl_ms=10)
        one = Following(engine, asked("hi [[tokens=50]]"))
        await settled()
        clock.stall(0.205)
        clock.advance(0)
        await settled()

        assert one.tokens == 21
        one.task.cancel()

    async def test_one_timer(self) -> None:
        """However many sequences there are, one timer is set, and none when they are gone."""
        engine, clock = await on_clock(itl_ms=10)
        many = [Following(engine, asked("hi", str(number))) for number in range(20)]
        await settled()
        assert clock.pending == 1
        clock.advance(2)
        await asyncio.gather(*(one.task for one in many))

        assert clock.pending == 0

    async def test_slow_reader(self) -> None:
        """Tokens that come while nobody reads are one output."""
        engine, clock = await on_clock(itl_ms=10)
        outputs = engine.generate(asked("[[tokens=5]]"))
        first = asyncio.ensure_future(anext(outputs))
        await settled()
        clock.advance(1)

        assert len((await first).tokens) == 6
        await outputs.aclose()

    async def test_batch_limit(self) -> None:
        """Sequences beyond the batch wait for a slot."""
        engine, clock = await on_clock(max_batch_size=1, itl_ms=10)
        first, second = (Following(engine, asked("[[tokens=3]]", id_)) for id_ in "ab")
        await settled()
        clock.advance(0.02)
        await settled()
        assert (first.tokens > 0, second.tokens, engine.live) == (True, 0, 2)
        clock.advance(1)
        await settled()

        assert (first.tokens, second.tokens, engine.live) == (4, 4, 0)

    async def test_abort_while_waiting(self) -> None:
        """A sequence without a slot can be aborted too."""
        engine, _ = await on_clock(max_batch_size=1, itl_ms=10)
        first, second = (Following(engine, asked("hi", id_)) for id_ in "ab")
        await settled()
        engine.abort("b")
        await second.task

        assert (list(engine.aborted), second.outputs, engine.live) == (["b"], [], 1)
        first.task.cancel()

    async def test_marker_sets_the_pace(self) -> None:
        """A marker in the prompt sets one request's pace."""
        engine, clock = await on_clock()
        slow = Following(engine, asked("[[ttft_ms=1000]]"))
        await settled()
        clock.advance(0.9)
        await settled()

        assert slow.tokens == 0
        slow.task.cancel()


class TestScript:
    async def test_text(self) -> None:
        """A request can say what the answer is."""
        assert await said(await engine_of(), asked("x [[text:Hello 🚀]] y")) == "Hello 🚀".encode()

    async def test_bytes(self) -> None:
        """An answer need not be UTF-8."""
        assert await said(await engine_of(), asked("[[hex=80ff]]")) == b"\x80\xff"

    async def test_tokens(self) -> None:
        """A request can say how long the answer is, the end token not counted."""
        outputs = await read(await engine_of(), asked("[[tokens=7]]"))

        assert sum(len(output.tokens) for output in outputs) == 8
        assert outputs[-1].finish_reason == "stop"

    async def test_last_marker_counts(self) -> None:
        """Of several markers of a name, the last one counts."""
        assert await said(await engine_of(), asked("[[text:a]] [[text:b]]")) == b"b"

    async def test_option(self) -> None:
        """An option says it for every request, a marker overrules it."""
        engine = await engine_of(text="always")

        assert await said(engine, asked("x")) == b"always"
        assert await said(engine, asked("[[text:once]]")) == b"once"

    async def test_finish(self) -> None:
        """The finish reason at the end of an answer can be chosen."""
        assert (await read(await engine_of(), asked("[[text:a]][[finish=length]]")))[-1].finish_reason == "length"

    async def test_cached(self) -> None:
        """Prompt tokens can be reported as cached, in the first output only, never all of them."""
        outputs = await read(await engine_of(), asked("[[cached=1000]]"))

        assert [output.cached_tokens for output in outputs if output.cached_tokens] == [len("[[cached=1000]]") - 1]

    async def test_ordinary_text(self) -> None:
        """Double brackets that are no marker are ordinary text."""
        assert await said(await engine_of(), asked("[[note: x]] [[1, 2]]"))

    @pytest.mark.parametrize("marker", ["[[tokens=many]]", "[[fault:dei_after=1]]", "[[hex=8]]", "[[die_after=-1]]"])
    async def test_mistake(self, marker: str) -> None:
        """A marker with a value it cannot have, or a fault that does not exist, refuses the request."""
        with pytest.raises(EngineRefused):
            await read(await engine_of(), asked(marker))


class TestFaults:
    async def test_death(self) -> None:
        """After the given tokens the engine dies: every sequence fails, and so does all that comes later."""
        engine, clock = await on_clock(itl_ms=10)
        one, other = Following(engine, asked("[[fault:die_after=3]]")), Following(engine, asked("hi", "b"))
        await settled()
        clock.advance(1)
        await asyncio.wait([one.task, other.task])

        assert one.tokens == 3
        assert all(isinstance(task.exception(), EngineDead) for task in (one.task, other.task))
        with pytest.raises(EngineDead):
            engine.check()
        with pytest.raises(EngineDead):
            await read(engine, asked("hi", "c"))

    async def test_exception(self) -> None:
        """A request can fail with an exception of no known kind; the engine lives on."""
        engine = await engine_of()

        with pytest.raises(RuntimeError):
            await read(engine, asked("[[fault:raise_after=2]]"))
        assert await said(engine, asked("hi"))
        assert engine.live == 0

    async def test_refusal(self) -> None:
        """A request can be refused before it starts."""
        with pytest.raises(EngineRefused, match="not today"):
            await read(await engine_of(), asked("[[refuse=not today]]"))

    async def test_silence(self) -> None:
        """After the given tokens nothing comes, and the slot stays taken until the sequence is aborted."""
        engine, clock = await on_clock(itl_ms=10)
        one = Following(engine, asked("[[silence_after=5]]"))
        await settled()
        clock.advance(60)
        await settled()
        assert (one.tokens, engine.live, clock.pending) == (5, 1, 0)
        engine.abort("a")
        await one.task

        assert engine.live == 0

    async def test_nan(self) -> None:
        """Log probabilities can be what is no number."""
        outputs = await read(await engine_of(), asked("[[fault:nan_logprobs=true]]", logprobs=1))

        assert math.isnan(outputs[0].tokens[0].logprob or 0)

    async def test_one_leg(self) -> None:
        """A marker can concern one leg of a disaggregated request."""
        engine = await engine_of()
        outputs = await read(engine, asked("[[generation:refuse=no]]", leg=Leg.CONTEXT))

        with pytest.raises(EngineRefused):
            await read(engine, asked("[[generation:refuse=no]]", leg=Leg.GENERATION, state=outputs[-1].state))

    async def test_lost_state(self) -> None:
        """A generation leg can find its state lost."""
        engine = await engine_of()
        prompt = "[[lose_state=1]]"
        outputs = await read(engine, asked(prompt, leg=Leg.CONTEXT))

        with pytest.raises(HandoffFailed):
            await read(engine, asked(prompt, leg=Leg.GENERATION, state=outputs[-1].state))

    async def test_start(self) -> None:
        """The start can fail, and the engine can be closed after it."""
        engine = create(None, {"start_fails": "No luck."})

        with pytest.raises(EngineError, match="No luck"):
            await engine.start()
        await engine.close()


class TestHandoff:
    async def test_state_size(self) -> None:
        """The state can be made as heavy as a real one."""
        outputs = await read(await engine_of(state_bytes_per_token="1000"), asked("hello", leg=Leg.CONTEXT))

        assert len(outputs[-1].state or b"") > 5000

    async def test_another_model(self) -> None:
        """The state of another model is refused."""
        outputs = await read(await engine_of(), asked("hi", leg=Leg.CONTEXT))
        other = create("other", {})
        await other.start()

        with pytest.raises(HandoffFailed):
            await read(other, asked("hi", leg=Leg.GENERATION, state=outputs[-1].state))

    async def test_unseeded(self) -> None:
        """Without a seed the generation leg still goes on as the context leg began."""
        engine = await engine_of()
        request = asked("hi", temperature=1.0, leg=Leg.CONTEXT)
        outputs = await read(engine, request)
        first = outputs[-1].tokens[0].id
        more = structs.replace(request, leg=Leg.GENERATION, state=outputs[-1].state, first_tokens=[first])

        assert (await read(engine, more))[0].tokens[0].id == first


class TestSampling:
    async def test_bias_forces(self) -> None:
        """A strong bias forces a token, and an opposite one forbids it."""
        engine = await engine_of()

        assert await said(engine, asked("hi", max_tokens=3, logit_bias={65: 100.0})) == b"AAA"
        assert b"A" not in await said(engine, asked("[[text:AAA]]", logit_bias={65: -100.0}))

    async def test_bias_against_the_end(self) -> None:
        """With its end token forbidden an answer goes on to the limit."""
        outputs = await read(await engine_of(), asked("[[text:ab]]", max_tokens=50, logit_bias={258: -100.0}))

        assert outputs[-1].finish_reason == "length"

    @pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
    async def test_penalties(self, field: str) -> None:
        """Penalties make another answer."""
        engine, plain = await engine_of(), asked("hi")
        penalised = structs.replace(plain, sampling=structs.replace(plain.sampling, **{field: 1.5}))

        assert await said(engine, penalised) != await said(engine, plain)

    async def test_context_is_the_limit(self) -> None:
        """Nothing is generated beyond the context."""
        outputs = await read(await engine_of(context_length="20"), asked("0123456789", ignore_eos=True))

        assert sum(len(output.tokens) for output in outputs) == 10


class TestCreation:
    def test_unknown_engine(self) -> None:
        """An unknown engine names the known ones."""
        with pytest.raises(EngineError, match="llama_cpp, scripted"):
            create_engine("vllm", None, {})

    @pytest.mark.parametrize("options", [{"wings": "2"}, {"context_length": "long"}, {"itl_ms": "-1"}])
    def test_wrong_option(self, options: dict[str, str]) -> None:
        """An option that is unknown or has a value it cannot have is named."""
        with pytest.raises(EngineError, match=next(iter(options)) if "wings" in options else "option"):
            create_engine("scripted", None, options)

    def test_missing_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An engine whose library is missing names the extra that brings it."""
        monkeypatch.setitem(
            ENGINES, "lost", ENGINES["scripted"]._replace(factory="no_such_library:create", extra="cpu")
        )

        with pytest.raises(EngineError, match=r"packrelay\[cpu\]"):
            create_engine("lost", None, {})

    async def test_name(self) -> None:
        """It serves under the name it is given, else under its own."""
        assert (await create("tiny", {}).start()).model == "tiny"
        assert (await create(None, {}).start()).model == "scripted"


SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}, "b": {}}, "required": ["a"]},
    {"type": "object", "required": ["x", "y"], "properties": {"x": {"type": "boolean"}}},
    {"type": "array", "items": {"enum": ["p", "q"]}, "minItems": 3},
    {"type": "array", "prefixItems": [{"const": 1}, {"type": "null"}], "minItems": 2},
    {"type": "string", "minLength": 30, "maxLength": 31},
    {"type": "string", "maxLength": 1},
    {"type": "string", "format": "date"},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    {"type": "integer", "maximum": -7, "multipleOf": 5},
    {"type": ["null", "string"]},
    {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    {"allOf": [{"required": ["a"]}, {"properties": {"a": {"const": 5}}}]},
    {"$ref": "#/$defs/node", "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}, "type": "object"}}},
    {"minimum": 2},
    {},
]


class TestInstances:
    @pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
    def test_fits(self, schema: Any) -> None:
        """A value made for a schema fits it."""
        Draft202012Validator(schema).validate(instance_of(schema, "word"))

    @pytest.mark.parametrize(
        "schema",
        [
            False,
            {"type": "string", "pattern": "^a$"},
            {"type": "integer", "minimum": 3, "maximum": 2},
            {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            {"$ref": "#/$defs/none"},
            {"enum": []},
            {"required": ["a"], "additionalProperties": False},
            {"items": {}, "minItems": 10**9},
        ],
        ids=json.dumps,
    )
    def test_refused(self, schema: Any) -> None:
        """A schema without a value, or with a keyword that is not understood, is refused."""
        with pytest.raises(NoInstance):
            instance_of(schema, "word")

    async def test_refused_by_the_engine(self) -> None:
        """The engine refuses what it cannot follow, naming the field."""
        constraint = Constraint(kind="json_schema", text='{"type": "string", "pattern": "a"}')

        with pytest.raises(EngineRefused) as refused:
            await read(await engine_of(), asked("hi", constraint=constraint))
        assert refused.value.param == "response_format"
