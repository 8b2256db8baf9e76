"""The CPU engine over the real model: every field, equal whatever runs beside it or on how many workers, and hard to kill."""

import asyncio
import json
import math
import random
import sys
import textwrap
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio
from jsonschema import Draft202012Validator
from msgspec import Struct, structs

from worker.engines.base import (
    Capability,
    Constraint,
    Engine,
    EngineDead,
    EngineFacts,
    EngineRefused,
    HandoffFailed,
    Leg,
    Sampling,
    SequenceOutput,
    SequenceRequest,
    Token,
)
from worker.engines.llama_cpp import create
from worker.engines.llama_cpp.binding import Row
from worker.engines.llama_cpp.engine import LlamaCppEngine

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

DEADLINE = 50.0
SHORT = "Name three colours."
LONG = "Tell me of the rivers, hills and harbours of Rome. " * 6
"""Some 80 tokens: several chunks."""


class Answer(Struct):
    """A whole sequence."""

    tokens: list[Token]
    finish_reason: str | None
    stop_token: int | None
    outputs: list[SequenceOutput]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def text(self) -> str:
        return b"".join(token.data for token in self.tokens).decode(errors="replace")


class Bench(Struct):
    """A started engine, its facts, and how many requests it got."""

    engine: Engine
    facts: EngineFacts
    asked: int = 0

    def tokens(self, text: str) -> list[int]:
        """A chat with one message."""
        return self.engine.tokenize(
            f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", special=True, add_special=False
        )

    def request(self, text: str | list[int] = SHORT, *, leg: Leg = Leg.BOTH, **sampling: Any) -> SequenceRequest:
        """A greedy request of a few tokens. Any: fields of Sampling."""
        self.asked += 1
        return SequenceRequest(
            request_id=f"request-{self.asked}",
            prompt=self.tokens(text) if isinstance(text, str) else text,
            sampling=Sampling(**{"max_tokens": 8, "temperature": 0.0, **sampling}),
            leg=leg,
        )

    async def answer(self, request: SequenceRequest) -> Answer:
        """The whole sequence."""
        async with asyncio.timeout(DEADLINE), aclosing(self.engine.generate(request)) as outputs:
            said = [output async for output in outputs]
        last = said[-1] if said else SequenceOutput()
        return Answer([token for output in said for token in output.tokens], last.finish_reason, last.stop_token, said)

    async def ask(self, text: str | list[int] = SHORT, **sampling: Any) -> Answer:
        """The same, from a text."""
        return await self.answer(self.request(text, **sampling))


async def bench_of(**options: str) -> Bench:
    """A started engine."""
    engine = create(None, options)
    return Bench(engine, await engine.start())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    """The engine most tests share: four slots."""
    made = await bench_of(context_length="1024")
    yield made
    await made.engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def other() -> AsyncIterator[Bench]:
    """A second worker, unlike the first: three slots, another chunk, another context length."""
    made = await bench_of(context_length="700", slots="3", chunk="40")
    yield made
    await made.engine.close()


async def first_of(outputs: AsyncGenerator[SequenceOutput, None]) -> SequenceOutput:
    """The first output."""
    async with asyncio.timeout(DEADLINE):
        return await anext(outputs)


JSON = Constraint(kind="json_object")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "rose", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
SCHEMA = Constraint(kind="json_schema", text=json.dumps(PERSON))

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (SHORT, {"max_tokens": 16}),
    "greedy long": (LONG, {"max_tokens": 10}),
    "seeded": (SHORT, {"max_tokens": 16, "temperature": 1.0, "seed": 7}),
    "seeded long": (LONG, {"max_tokens": 10, "temperature": 1.3, "seed": -(2**63)}),
    "truncated": (SHORT, {"max_tokens": 12, "temperature": 0.9, "top_k": 50, "top_p": 0.9, "min_p": 0.02, "seed": 5}),
    "repetition": (LONG, {"max_tokens": 10, "repetition_penalty": 1.3}),
    "penalties": (
        "Sing.",
        {"max_tokens": 12, "presence_penalty": 0.5, "frequency_penalty": 0.7, "temperature": 1.0, "seed": 3},
    ),
    "bias": (SHORT, {"max_tokens": 10, "logit_bias": {253: 4.0, 28: -100.0}}),
    "min tokens": ("Say hi.", {"max_tokens": 18, "min_tokens": 14, "temperature": 1.0, "seed": 1}),
    "ignore eos": ("Say hi.", {"max_tokens": 24, "ignore_eos": True}),
    "logprobs": (SHORT, {"max_tokens": 8, "logprobs": 3, "temperature": 1.0, "seed": 9}),
    "json": ("Give a person as JSON.", {"max_tokens": 24, "constraint": JSON}),
    "schema": ("Give a person as JSON.", {"max_tokens": 32, "constraint": SCHEMA, "temperature": 1.0, "seed": 4}),
    "stop id": (SHORT, {"max_tokens": 16, "stop_token_ids": frozenset({3260, 28})}),
    "one token": (LONG, {"max_tokens": 1}),
}
"""Kinds of requests, all of which must come out the same however they are run."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(bench: Bench) -> dict[str, Answer]:
    """Every kind of request, one after another, on one worker."""
    return {kind: await bench.ask(text, **sampling) for kind, (text, sampling) in KINDS.items()}


async def handed_over(first: Bench, second: Bench, text: str, **sampling: Any) -> Answer:
    """The answer by two legs on two workers; the context leg's alone if that was the whole answer."""
    context = await first.answer(first.request(text, leg=Leg.CONTEXT, **sampling))
    if context.finish_reason == "stop":
        return context
    request = second.request(text, leg=Leg.GENERATION, **sampling)
    return await second.answer(structs.replace(request, state=context.outputs[-1].state, first_tokens=context.ids))


# --- the same, however it is run ---


async def test_neighbours_change_nothing(bench: Bench, alone: dict[str, Answer]) -> None:
    """All kinds of requests give the same tokens and log probabilities alone and all at once."""
    together = await asyncio.gather(*(bench.ask(text, **sampling) for text, sampling in KINDS.values()))

    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone.values()]


@pytest.mark.parametrize("kind", KINDS)
async def test_two_legs_give_what_one_gives(bench: Bench, other: Bench, alone: dict[str, Answer], kind: str) -> None:
    """Prefill on one worker and generation on an unlike one give every token, score and ending that one worker gives."""
    text, sampling = KINDS[kind]
    one, two = alone[kind], await handed_over(bench, other, text, **sampling)

    assert (two.tokens, two.finish_reason, two.stop_token) == (one.tokens, one.finish_reason, one.stop_token)


async def test_a_seed_that_was_drawn_is_handed_over(bench: Bench, other: Bench) -> None:
    """Without a seed in the request, the generation leg draws as the context leg began."""
    answer = await handed_over(bench, other, SHORT, temperature=1.5, max_tokens=5)

    assert len(answer.tokens) == 5 or answer.finish_reason == "stop"


async def test_a_reused_prefix_changes_nothing(bench: Bench) -> None:
    """A prompt that begins like an earlier one is not evaluated again as far as that goes, and is answered the same."""
    first = await bench.ask(LONG, temperature=1.0, seed=2)
    again = await bench.ask(LONG, temperature=1.0, seed=2)

    assert again.tokens == first.tokens
    assert again.outputs[0].cached_tokens >= len(bench.tokens(LONG)) - 1
    assert all(output.cached_tokens == 0 for output in again.outputs[1:])


async def test_a_conversation_goes_on_from_its_answer(bench: Bench) -> None:
    """What was generated is part of what is kept: the next turn only reads what is new, and gets what a fresh engine gets."""
    first = await bench.ask(SHORT, max_tokens=6, ignore_eos=True)
    turn = bench.tokens(SHORT) + first.ids + bench.tokens("And then?")
    kept = await bench.ask(turn, logprobs=1)
    # Prompt log probabilities need every token to be evaluated.
    fresh = await bench.ask(turn, logprobs=1, prompt_logprobs=0)

    assert kept.outputs[0].cached_tokens >= len(bench.tokens(SHORT)) + 5
    assert (fresh.outputs[0].cached_tokens, fresh.tokens) == (0, kept.tokens)


# --- sampling ---


async def test_log_probabilities_are_the_models_own(bench: Bench) -> None:
    """The greedy token has the highest one, alternatives come likeliest first, and bias and temperature do not show."""
    plain = await bench.ask(logprobs=4)
    biased = await bench.ask(logprobs=4, logit_bias={plain.ids[0]: -100.0}, temperature=2.0, seed=1, max_tokens=1)

    for token in plain.tokens:
        assert token.top[0].id == token.id
        assert token.top[0].logprob == token.logprob
        assert [other.logprob for other in token.top] == sorted((other.logprob for other in token.top), reverse=True)
    assert biased.tokens[0].top == plain.tokens[0].top
    assert biased.ids[0] != plain.ids[0]


async def test_all_log_probabilities_add_up(bench: Bench) -> None:
    """Asked for as many alternatives as there are tokens, the probabilities add up to one."""
    answer = await bench.ask(logprobs=10**9, max_tokens=1)

    assert len(answer.tokens[0].top) == bench.facts.vocabulary_size
    assert math.fsum(math.exp(other.logprob) for other in answer.tokens[0].top) == pytest.approx(1, abs=1e-4)


async def test_nothing_is_scored_unasked(bench: Bench) -> None:
    """Without the field there is no log probability, and with 0 there are no alternatives."""
    unasked, alone = await bench.ask(max_tokens=2), await bench.ask(max_tokens=2, logprobs=0)

    assert [(token.logprob, token.top) for token in unasked.tokens] == [(None, []), (None, [])]
    assert all(token.logprob is not None and token.top == [] for token in alone.tokens)


async def test_a_prompt_is_scored(bench: Bench) -> None:
    """Every token of the prompt has the log probability it has as an answer; the first has none."""
    prompt = bench.tokens(SHORT)
    answer = await bench.ask(prompt, prompt_logprobs=1, max_tokens=4, logprobs=1, ignore_eos=True)
    whole = await bench.ask(prompt + answer.ids, prompt_logprobs=1, max_tokens=1)

    scored = whole.outputs[0].prompt
    assert [token.id for token in scored] == prompt + answer.ids
    assert scored[0].logprob is None
    assert scored[: len(prompt)] == answer.outputs[0].prompt
    assert [token.logprob for token in scored[len(prompt) :]] == pytest.approx(
        [token.logprob for token in answer.tokens], abs=1e-5
    )


async def test_a_prompt_alone_is_scored(bench: Bench) -> None:
    """With no token to generate, the prompt's scores come with the end."""
    answer = await bench.ask([520], prompt_logprobs=0, max_tokens=0)

    assert (answer.tokens, answer.finish_reason) == ([], "length")
    assert [(token.id, token.logprob) for token in answer.outputs[0].prompt] == [(520, None)]


async def test_seeds_decide(bench: Bench) -> None:
    """Equal seeds give equal answers, other seeds and no seed others; the halves of a long seed both count."""
    seeds = [1, 1, 2, 1 + 2**40, None, None]
    answers = [await bench.ask("Tell a story.", temperature=1.5, seed=seed, max_tokens=10) for seed in seeds]

    assert answers[0].ids == answers[1].ids
    assert len({tuple(answer.ids) for answer in answers}) == 5


async def test_top_k_of_one_is_greedy(bench: Bench) -> None:
    """Whatever cuts everything but the likeliest token away leaves that one."""
    greedy = await bench.ask()

    for cut in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert (await bench.ask(temperature=1.5, seed=3, **cut)).ids == greedy.ids
    assert (await bench.ask(temperature=1e-30, seed=3)).ids == greedy.ids


async def test_penalties_look_at_the_prompt(bench: Bench) -> None:
    """A repetition penalty holds against tokens of the prompt, in one leg as in two."""
    prompt = bench.tokens("one two three four one two three four one two three")

    assert (await bench.ask(prompt, repetition_penalty=1.8)).ids != (await bench.ask(prompt)).ids


async def test_the_end_token_ends(bench: Bench) -> None:
    """The model's own end is a stop without a stop token, and no text."""
    answer = await bench.ask("Say hi.", max_tokens=200)

    assert (answer.finish_reason, answer.stop_token) == ("stop", None)
    assert bench.engine.token_bytes(answer.ids[-1]).decode() == bench.facts.eos
    assert [token.data == b"" for token in answer.tokens[-2:]] == [False, True]


async def test_a_stop_token_ends(bench: Bench) -> None:
    """A stop token id ends the sequence, is named, and adds no text; before min_tokens it does not come."""
    plain = await bench.ask(max_tokens=8)
    stop = plain.ids[3]
    answer = await bench.ask(max_tokens=8, stop_token_ids=frozenset({stop, 10**9}))
    later = await bench.ask(max_tokens=8, min_tokens=8, stop_token_ids=frozenset({stop}))

    assert (answer.finish_reason, answer.stop_token, answer.ids) == ("stop", stop, plain.ids[:4])
    assert answer.tokens[-1].data == b""
    assert (later.finish_reason, len(later.ids), stop in later.ids[:-1]) == ("length", 8, False)


async def test_min_tokens_come(bench: Bench) -> None:
    """No end token comes before there are as many tokens as asked for."""
    short, longer = await bench.ask("Say hi.", max_tokens=60), await bench.ask("Say hi.", max_tokens=60, min_tokens=50)

    assert len(short.ids) < 50 <= len(longer.ids)


async def test_the_context_ends_a_sequence(bench: Bench) -> None:
    """A sequence ends with its context, prompt and output together; its neighbours and the engine go on."""
    small = await bench_of(context_length="100", slots="2")
    prompt = (bench.tokens(LONG) * 2)[:97]
    answer, neighbour = await asyncio.gather(
        small.ask(prompt, max_tokens=100, ignore_eos=True), small.ask(max_tokens=20, ignore_eos=True)
    )

    assert (answer.finish_reason, len(answer.ids)) == ("length", 3)
    assert neighbour.ids == (await bench.ask(max_tokens=20, ignore_eos=True)).ids
    await small.engine.close()


async def test_tokens_are_exact_bytes(bench: Bench) -> None:
    """Characters cut into tokens come as the bytes they are, byte for byte what was tokenised."""
    text = "naïve 東京 🚀👩‍👩‍👧\n\t x"
    tokens = bench.engine.tokenize(text, special=False, add_special=False)

    assert b"".join(map(bench.engine.token_bytes, tokens)).decode() == text
    assert bench.engine.token_bytes(10813) == b"\xf0\x9f"
    forced = await bench.ask(max_tokens=6, constraint=Constraint(kind="grammar", text='root ::= "🚀é"'))
    assert forced.text == "🚀é"
    assert bench.engine.tokenize("\ud800", special=False, add_special=True) == bench.engine.tokenize(
        "?", special=False, add_special=True
    )
    assert bench.engine.token_bytes(-1) == bench.engine.token_bytes(10**9) == b""


async def test_the_least_number_of_tokens_is_never_too_large(bench: Bench) -> None:
    """Whatever a text is made of, it is tokenised to at least as many tokens as were said at once."""
    chance = random.Random(1)
    pieces = [bench.engine.token_bytes(token).decode(errors="replace") for token in range(bench.facts.vocabulary_size)]
    pieces += [
        "<|im_start|>",
        "<|im_end|>",
        "<|",
        "|>",
        " ",
        "\n",
        " " * 90,
        "\x00",
        "\x04",
        "\x14",
        "🚀",
        "\ud800",
    ] * 2000
    texts = ["".join(chance.choices(pieces, k=chance.randrange(60))) for _ in range(500)]
    texts += ["", "#" * 1000, "<|im_start|>" * 100, "\x04" * 100, "<|im_end|>   " * 100, "<|im_<|im_end|>end|>" * 9]

    for text in texts:
        found = bench.engine.tokenize(text, special=True, add_special=False)
        assert bench.engine.fewest_tokens(text, 10**9) <= len(found), text


async def test_thousands_of_markers_are_read_like_a_few(bench: Bench) -> None:
    """A text that is given to llama.cpp in pieces is tokenised as if it were whole, and in its own time instead of its square."""
    chance = random.Random(2)
    between = ["", " ", "\n\n", "a", " word", "<|", "naïve 東京"]
    turns = [chance.choice(between) + "<|im_start|>" + chance.choice(between) + "<|im_end|>" for _ in range(2000)]
    apart = [bench.engine.tokenize(turn, special=True, add_special=False) for turn in turns]

    # Each turn begins where a marker has ended, so it has the same tokens by itself.
    assert bench.engine.tokenize("".join(turns), special=True, add_special=False) == [
        token for tokens in apart for token in tokens
    ]
    begun = bench.engine.tokenize("", special=True, add_special=True)
    assert bench.engine.tokenize(turns[0] * 2000, special=True, add_special=True) == begun + apart[0] * 2000


@pytest.mark.parametrize("text", ["hello " * 700_000, "=" * 4_000_000, "<|im_start|>" * 9000, "日本 " * 600_000])
async def test_a_text_that_is_far_too_long_is_known_at_once(bench: Bench, text: str) -> None:
    """Megabytes, or thousands of markers, which take llama.cpp seconds: more than a context of 8192 tokens, without tokenising."""
    assert bench.engine.fewest_tokens(text, 8192) >= 8192


# --- constraints ---

SCHEMAS: list[Any] = [
    PERSON,
    {"type": "object", "additionalProperties": {"type": "number"}, "minProperties": 1, "maxProperties": 3},
    {"type": "object", "properties": {f"p{number}": {"type": "boolean"} for number in range(12)}, "required": ["p5"]},
    {"type": "array", "items": {"type": "integer", "minimum": -17, "maximum": 305}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "null"}, {"type": "string", "maxLength": 4}], "items": False},
    {"anyOf": [{"type": "number", "minimum": -2, "exclusiveMaximum": 1}, {"type": "null"}]},
    {"type": "string", "pattern": "^[A-Z]{2}\\d{2,4}(-x)?$"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "email"},
    {"type": "string", "minLength": 1200, "maxLength": 2500},
    {
        "$defs": {"t": {"type": "object", "properties": {"v": {"enum": [1, 2]}, "l": {"$ref": "#/$defs/t"}}, "required": ["v"]}},
        "$ref": "#/$defs/t",
    },
    {
        "oneOf": [
            {"type": "object", "properties": {"op": {"const": "add"}, "n": {"type": "integer"}}, "required": ["op", "n"]},
            {"type": "object", "properties": {"op": {"const": "none"}}, "required": ["op"]},
        ]
    },
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:50])
async def test_what_comes_fits_the_schema(bench: Bench, schema: Any) -> None:
    """However unlikely the tokens drawn, an answer that ends by itself is JSON that fits."""
    constraint = Constraint(kind="json_schema", text=json.dumps(schema))
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    requests = [
        bench.request("Give JSON.", constraint=constraint, temperature=1.6, seed=seed, max_tokens=50)
        for seed in range(2)
    ]
    answers = await asyncio.gather(*map(bench.answer, requests))

    for answer in answers:
        if answer.finish_reason == "stop":
            validator.validate(json.loads(answer.text))


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("regex", "(?:red|blue){2}", {"redred", "redblue", "bluered", "blueblue"}),
        ("grammar", 'root ::= "yes" | "no"', {"yes", "no"}),
        ("grammar", 'root ::= "<|im_start|>" | "<|im_end|>"', {"<|im_start|>", "<|im_end|>"}),
    ],
)
async def test_a_constraint_is_kept(bench: Bench, kind: Any, text: str, expected: set[str]) -> None:
    """Only what the expression or grammar allows comes, as text, and then the end; it wins over min_tokens and ignore_eos."""
    answer = await bench.ask(
        constraint=Constraint(kind=kind, text=text), temperature=2.0, min_tokens=30, max_tokens=40, ignore_eos=True
    )

    assert answer.text in expected
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", "{"),
        ("json_schema", '{"not":{}}'),
        ("json_schema", '{"type":"string","pattern":"\\\\p{L}"}'),
        ("json_schema", '{"type":"number","minimum":0.5}'),
        ("json_schema", '{"minLength":5,"maxLength":2,"type":"string"}'),
        ("json_schema", '{"type":"string","maxLength":100000000}'),
        ("json_schema", "[" * 90_000),
        ("json_schema", '{"$ref":"#"}'),
        ("regex", "[ab]*a[ab]{12}"),
        ("regex", "(?:(?:.{1,99}){1,99}x){1,99}"),
        ("regex", "("),
        ("grammar", ""),
        ("grammar", "root ::= ("),
        ("grammar", "root ::= [a-z]{5,2}"),
        ("grammar", "root ::= root"),
        ("grammar", 'root ::= "a" "\\x04"'),
        ("grammar", "root ::= " + "(" * 40_000),
        ("grammar", "root ::= \ud800"),
    ],
    ids=lambda text: text[:30].encode("utf-8", "replace").decode(),
)
async def test_a_bad_constraint_is_refused(bench: Bench, kind: Any, text: str) -> None:
    """What cannot be enforced is refused before the first output, for the field it came in."""
    with pytest.raises(EngineRefused) as refused:
        await bench.ask(constraint=Constraint(kind=kind, text=text))

    assert refused.value.param == "response_format"
    bench.engine.check()


# --- requests that must not hurt ---


@pytest.mark.parametrize(
    ("param", "sampling"),
    [
        ("temperature", {"temperature": math.nan}),
        ("temperature", {"temperature": -1.0}),
        ("top_p", {"top_p": math.inf}),
        ("repetition_penalty", {"repetition_penalty": 0.0}),
        ("presence_penalty", {"presence_penalty": math.nan}),
        ("logit_bias", {"logit_bias": {1: math.inf}}),
        ("logit_bias", {"logit_bias": {1: 1e30}}),
        ("logit_bias", {"logit_bias": {10**9: 1.0}}),
        ("logit_bias", {"logit_bias": {-1: 1.0}}),
    ],
)
async def test_numbers_that_llama_cpp_could_not_take_are_refused(
    bench: Bench, param: str, sampling: dict[str, Any]
) -> None:
    """They are refused by name, before the first output."""
    with pytest.raises(EngineRefused) as refused:
        await bench.ask(**sampling)

    assert refused.value.param == param


@pytest.mark.parametrize("prompt", [[], [-1], [49152], [10**12], [1] * 1024], ids=lambda prompt: str(prompt[:1]))
async def test_prompts_that_llama_cpp_could_not_take_are_refused(bench: Bench, prompt: list[int]) -> None:
    """Ids of no token, no tokens, and too many of them are refused."""
    with pytest.raises(EngineRefused):
        await bench.ask(prompt)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1e300},
        {"temperature": 2.0, "min_p": 5.0, "top_p": -1.0, "top_k": 10**30, "seed": -1},
        {"repetition_penalty": 1e30, "presence_penalty": -1e30},
        {"logit_bias": dict.fromkeys(range(49152), -100.0), "temperature": 1.0},
        {"max_tokens": 2, "min_tokens": 10**9},
        {"logprobs": -5, "prompt_logprobs": 10**6, "max_tokens": 1},
        {"constraint": JSON, "stop_token_ids": frozenset(range(49152)), "min_tokens": 5, "temperature": 1.0},
    ],
)
async def test_extreme_values_are_survived(bench: Bench, sampling: dict[str, Any]) -> None:
    """Whatever fields hold, the sequence ends and the engine lives."""
    answer = await bench.ask("Hi", **{"max_tokens": 3, **sampling})

    assert answer.finish_reason in ("stop", "length")
    bench.engine.check()


async def test_a_damaged_state_fails_its_request_alone(bench: Bench, other: Bench) -> None:
    """Truncated, flipped, foreign, missing or made for another prompt: HandoffFailed, and the worker goes on."""
    context = await bench.answer(bench.request(leg=Leg.CONTEXT))
    state = context.outputs[-1].state or b""
    flip = random.Random(1).randrange(len(state))
    damaged = [
        b"",
        state[:-1],
        state[:100],
        state[:flip] + bytes([state[flip] ^ 1]) + state[flip + 1 :],
        state + b"x",
        None,
    ]

    for bad in damaged:
        with pytest.raises(HandoffFailed):
            await other.answer(structs.replace(other.request(leg=Leg.GENERATION), state=bad))
    with pytest.raises(HandoffFailed, match="another prompt"):
        await other.answer(structs.replace(other.request("Say hi!", leg=Leg.GENERATION), state=state))
    assert (await handed_over(bench, other, SHORT)).ids == (await bench.ask()).ids


async def test_another_first_token_fails_the_hand_off(bench: Bench, other: Bench) -> None:
    """A generation leg that samples another first token than the context leg did does not go on."""
    context = await bench.answer(bench.request(leg=Leg.CONTEXT))
    request = other.request(leg=Leg.GENERATION)

    with pytest.raises(HandoffFailed, match="first token"):
        await other.answer(structs.replace(request, state=context.outputs[-1].state, first_tokens=[context.ids[0] + 1]))


async def test_a_context_leg_that_is_complete_has_no_state(bench: Bench) -> None:
    """If the first token ends the answer there is nothing to go on from."""
    first = (await bench.ask(max_tokens=1)).ids[0]
    answer = await bench.answer(bench.request(leg=Leg.CONTEXT, stop_token_ids=frozenset({first})))

    assert (answer.finish_reason, answer.stop_token, answer.outputs[-1].state) == ("stop", first, None)


# --- slots, aborts, ends ---


async def test_an_abort_frees_the_slot() -> None:
    """With one slot: aborted while it decodes, while it reads its prompt, and while it waits, a request makes way for the next."""
    single = await bench_of(context_length="1024", slots="1")
    decoding = single.engine.generate(single.request(max_tokens=900, ignore_eos=True))
    await first_of(decoding)
    waiting = asyncio.create_task(single.answer(single.request("Wait.", max_tokens=900)))
    reading = single.request(LONG * 5, max_tokens=900)
    prefilling = asyncio.create_task(single.answer(reading))
    await asyncio.sleep(0)  # Lets both tasks line up behind the first.

    waiting_id = f"request-{single.asked - 1}"
    single.engine.abort(waiting_id)
    assert (await waiting).outputs == []
    await decoding.aclose()
    single.engine.abort(reading.request_id)
    assert (await prefilling).outputs == []
    assert (await single.ask(max_tokens=2)).ids
    await single.engine.close()


async def test_a_long_prompt_holds_nobody_up(bench: Bench) -> None:
    """While one prompt is read, a short request that came later is answered first."""
    long = asyncio.create_task(bench.ask(LONG * 2, prompt_logprobs=0, max_tokens=1))
    await asyncio.sleep(0)  # Lets it line up first.
    await bench.ask("Hi there, you.", max_tokens=2)

    assert not long.done()
    assert (await long).ids


async def test_a_slow_reader_gets_everything_at_once(bench: Bench) -> None:
    """Outputs merge until they are read; nothing is lost."""
    request = bench.request("Count.", max_tokens=40, ignore_eos=True)
    expected = (await bench.answer(request)).ids
    async with aclosing(bench.engine.generate(structs.replace(request, request_id="slow"))) as outputs:
        said = [await first_of(outputs)]
        # Another request of equal length ends after the one that nobody reads.
        await bench.ask("Count.", max_tokens=60, ignore_eos=True)
        said += [output async for output in outputs]

    assert [token.id for output in said for token in output.tokens] == expected
    assert len(said) <= 3


async def test_closing_ends_everything() -> None:
    """Running and waiting requests fail with EngineDead, and so does everything asked afterwards; closing twice is fine."""
    closing = await bench_of(context_length="512", slots="1")
    running = [asyncio.create_task(closing.ask(LONG, max_tokens=300)) for _ in range(3)]
    constrained = asyncio.create_task(closing.ask(constraint=JSON))
    await asyncio.sleep(0)
    await asyncio.gather(closing.engine.close(), closing.engine.close())

    ended = await asyncio.gather(*running, constrained, return_exceptions=True)
    assert [type(error) for error in ended] == [EngineDead] * 4
    with pytest.raises(EngineDead):
        closing.engine.check()
    with pytest.raises(EngineDead):
        closing.engine.tokenize("a", special=False, add_special=False)
    with pytest.raises(EngineDead):
        await closing.ask([1, 2])


async def test_a_start_that_was_given_up_is_closed() -> None:
    """Cancelled while it loads, an engine can be closed, and its thread ends."""
    engine = create(None, {"context_length": "256"})
    before = set(threading.enumerate())
    start = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    start.cancel()
    await engine.close()

    assert not [thread for thread in threading.enumerate() if thread.name == "llama_cpp" and thread not in before]
    with pytest.raises(EngineDead):
        engine.check()


async def test_the_death_of_the_thread_is_told() -> None:
    """What ends the engine thread fails every request with EngineDead, running or waiting, and `check` says so from then on."""
    dying = await bench_of(context_length="256", slots="1")
    assert isinstance(dying.engine, LlamaCppEngine)
    assert dying.engine._batcher is not None

    def fail(rows: Sequence[Row]) -> None:
        raise RuntimeError("The processor is on fire.")

    dying.engine._batcher._context.evaluate = fail  # type: ignore[method-assign]  # What cannot be had by asking.
    ended = await asyncio.gather(dying.ask(), dying.ask(), return_exceptions=True)

    assert [type(error) for error in ended] == [EngineDead] * 2
    with pytest.raises(EngineDead, match="died"):
        dying.engine.check()
    await dying.engine.close()


async def test_leaving_without_closing_is_no_crash() -> None:
    """A process that ends in the middle of a generation ends as it says."""
    program = """
        import asyncio
        from worker.engines.base import Sampling, SequenceRequest
        from worker.engines.llama_cpp import create
        async def main():
            engine = create(None, {"context_length": "256"})
            await engine.start()
            request = SequenceRequest(request_id="1", prompt=[1, 2, 3], sampling=Sampling(max_tokens=200, ignore_eos=True))
            async for _ in engine.generate(request):
                raise SystemExit(7)
        asyncio.run(main())
    """
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", textwrap.dedent(program))

    async with asyncio.timeout(DEADLINE):
        assert await process.wait() == 7


async def test_facts_are_the_models(bench: Bench) -> None:
    """Name, limits, template and markers come from the file; everything is declared."""
    facts = bench.facts

    assert (facts.engine, facts.model) == ("llama_cpp", "SmolLM2-135M-Instruct")
    assert (facts.context_length, facts.vocabulary_size, facts.max_batch_size) == (1024, 49152, 4)
    assert (facts.bos, facts.eos) == ("<|im_start|>", "<|im_end|>")
    assert "im_start" in facts.chat_template
    assert facts.capabilities == frozenset(Capability)
