"""The engine tensorrt_llm's own promises. What every engine promises, and what two legs do, is in tests/contract."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio
from msgspec import convert

from schemas.disagg import DisaggregatedParams
from schemas.openai.chat import ChatCompletionRequest
from schemas.openai.completions import CompletionRequest
from schemas.openai.errors import ServingError
from tests.fake_tensorrt_llm import VERSIONS, installed
from tests.fake_tensorrt_llm.result import Logprob, RequestOutput, Response
from tests.fake_tensorrt_llm.tensor import Tensor
from tests.fake_tensorrt_llm.tokenizer import END
from tests.trtllm_rig import asked, behind, started
from tests.worker_rig import make_service
from worker.engines.base import EngineDead, EngineRefused, Sampling, SequenceOutput, SequenceRequest
from worker.engines.tensorrt_llm.engine import TensorrtLlmEngine
from worker.engines.tensorrt_llm.hold_back import HoldBack
from worker.engines.tensorrt_llm.library import OPTIONAL
from worker.engines.tensorrt_llm.sampling import MAX_PROMPT_LOGPROBS
from worker.plan import plan_chat, plan_completion

# One engine of each version serves all tests here, so they share an event loop.
pytestmark = pytest.mark.asyncio(loop_scope="module")

NEWER = "2026-07"
SAID = [{"role": "user", "content": "hi"}]
DRAWN = {"temperature": 0.7}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=VERSIONS)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[TensorrtLlmEngine]:
    """The engine of each version, started."""
    async with started(request.param) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def newer() -> AsyncIterator[TensorrtLlmEngine]:
    """The engine of the newer version, started."""
    async with started(NEWER) as made:
        yield made


def planned(engine: TensorrtLlmEngine, **fields: Any) -> SequenceRequest:
    """A chat request (a completions request, with a `prompt`) up to the engine. Any: fields as a client sends them."""
    assert engine._loaded is not None
    facts = engine._loaded.facts
    if "prompt" in fields:
        plan = plan_completion(convert({"model": "m", **fields}, CompletionRequest), engine, facts)
    else:
        plan = plan_chat(convert({"model": "m", "messages": SAID, **fields}, ChatCompletionRequest), engine, facts)
    sequence = plan.sequences[0]
    return SequenceRequest(request_id="r", prompt=sequence.prompt, sampling=sequence.sampling)


async def run(engine: TensorrtLlmEngine, request: SequenceRequest) -> list[SequenceOutput]:
    """All outputs of a request."""
    async with asyncio.timeout(10), aclosing(engine.generate(request)) as outputs:
        return [output async for output in outputs]


async def told(engine: TensorrtLlmEngine, **fields: Any) -> Any:
    """The SamplingParams that the library is given for a request. Any: an object of the stand-in."""
    await run(engine, planned(engine, **fields))
    return asked(engine)["sampling"]


# --- every field of the schema ---

MAPPED: dict[str, tuple[dict[str, Any], str, Any]] = {
    "frequency_penalty": ({"frequency_penalty": 0.5}, "frequency_penalty", 0.5),
    "presence_penalty": ({"presence_penalty": -0.5}, "presence_penalty", -0.5),
    "repetition_penalty": ({"repetition_penalty": 1.2}, "repetition_penalty", 1.2),
    "temperature": (DRAWN, "temperature", 0.7),
    "top_p": ({"top_p": 0.9}, "top_p", 0.9),
    "top_k": ({"top_k": 7}, "top_k", 7),
    "min_p": ({"min_p": 0.1}, "min_p", 0.1),
    "top_p_min": ({"top_p_min": 0.2}, "top_p_min", 0.2),
    "seed": ({"seed": 5}, "seed", 5),
    "max_tokens": ({"prompt": "hi", "max_tokens": 3}, "max_tokens", 3),
    "max_completion_tokens": ({"max_completion_tokens": 4}, "max_tokens", 4),
    "min_tokens": ({"min_tokens": 2, "max_tokens": 9}, "min_tokens", 2),
    "ignore_eos": ({"ignore_eos": True, "max_tokens": 9}, "ignore_eos", True),
    "stop_token_ids": ({"stop_token_ids": [9, 8]}, "stop_token_ids", [8, 9]),
    "logprobs": ({"prompt": "hi", "logprobs": 3}, "logprobs", 3),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 4}, "logprobs", 4),
    "echo": ({"prompt": "hi", "echo": True, "logprobs": 2}, "return_context_logits", True),
    "prompt_ignore_length": ({"prompt_ignore_length": 2}, "prompt_ignore_length", 2),
    "thinking_token_budget": ({"thinking_token_budget": 8}, "thinking_token_budget", 8),
}
"""Fields with a place of their own in SamplingParams: a request, the place, and what stands there."""

MAPPED_ELSEWHERE = {
    "logit_bias": "test_logit_bias_is_a_tensor_over_the_vocabulary",
    "response_format": "test_response_format_is_guided_decoding",
    "tool_choice": "test_forced_tool_call_is_guided_decoding",
    "cache_salt": "test_cache_salt_and_priority_are_the_requests_own",
    "priority": "test_cache_salt_and_priority_are_the_requests_own",
    "disaggregated_params": "tests/contract/test_tensorrt_llm_legs.py",
}
"""Fields with another place in the library, and the test that looks there."""

REFUSED: dict[str, dict[str, Any]] = {
    "use_beam_search": {"use_beam_search": True},
    "length_penalty": {"length_penalty": 2.0},
    "early_stopping": {"early_stopping": True},
    "lora_request": {"lora_request": {"lora_name": "a"}},
    "suffix": {"prompt": "hi", "suffix": "x"},
    "return_context_logits": {"prompt": "hi", "return_context_logits": True},
    "detokenize": {"prompt": "hi", "detokenize": False},
    "modalities": {"modalities": ["audio"]},
    "audio": {"audio": {"voice": "a"}},
    "verbosity": {"verbosity": "high"},
    "web_search_options": {"web_search_options": {}},
    "moderation": {"moderation": {}},
    "function_call": {"function_call": {"name": "f"}},
    "functions": {"functions": [{"name": "f"}]},
    "chat_template": {"chat_template": "{{ messages }}"},
    "media_io_kwargs": {"media_io_kwargs": {"image": {}}},
    "mm_processor_kwargs": {"mm_processor_kwargs": {"a": 1}},
}
"""Fields refused by name, each with a request that is."""

FRONT_END = {
    "model",
    "messages",
    "prompt",
    "tools",
    "n",
    "best_of",
    "stop",
    "stream",
    "stream_options",
    "user",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "add_special_tokens",
    "conversation_params",
    "parallel_tool_calls",
    "reasoning_effort",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "prediction",
    "prompt_token_ids",
    "prompt_token_ids_b64",
    "thinking",
    "add_generation_prompt",
    "documents",
    "chat_template_kwargs",
    "agent_hierarchy",
}
"""Fields that are done with before an engine is asked, or once it has answered: the same for every engine."""


async def test_every_field_is_mapped_refused_or_the_front_ends() -> None:
    """No field of either request is left out, and none is in two lists."""
    lists = [MAPPED.keys(), MAPPED_ELSEWHERE.keys(), REFUSED.keys(), FRONT_END]
    listed = [name for names in lists for name in names]
    fields = {*ChatCompletionRequest.__struct_fields__, *CompletionRequest.__struct_fields__}

    assert set(listed) == fields
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("name", MAPPED)
async def test_mapped_field_reaches_the_library(name: str, engine: TensorrtLlmEngine) -> None:
    """The library is told what the request says, where this version has a place for it."""
    fields, place, value = MAPPED[name]
    if name in OPTIONAL["SamplingParams"] and not engine._library.sampling_params.takes(name):
        with pytest.raises(Exception, match=name):
            planned(engine, **fields)
    else:
        assert getattr(await told(engine, **fields), place) == value


@pytest.mark.parametrize("name", REFUSED)
async def test_refused_field_is_named(name: str, newer: TensorrtLlmEngine) -> None:
    """What TensorRT-LLM or this worker cannot do is refused by the field's name."""
    with pytest.raises(Exception, match=f"'{name}'"):
        planned(newer, **REFUSED[name])


async def test_logit_bias_is_a_tensor_over_the_vocabulary(engine: TensorrtLlmEngine) -> None:
    """Biases stand at their tokens in a tensor as long as the model's logits."""
    bias = (await told(engine, logit_bias={"65": -3.0})).embedding_bias

    assert (len(bias), bias[65], sum(bias)) == (300, -3.0, -3.0)


@pytest.mark.parametrize(
    ("form", "place", "value"),
    [
        ({"type": "json_object"}, "json_object", True),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}},
            "json",
            {"type": "integer"},
        ),
        ({"type": "regex", "regex": "[ab]{3}"}, "regex", "[ab]{3}"),
        ({"type": "ebnf", "ebnf": 'root ::= "yes"'}, "grammar", 'root ::= "yes"'),
    ],
)
async def test_response_format_is_guided_decoding(
    form: dict[str, Any], place: str, value: Any, engine: TensorrtLlmEngine
) -> None:
    """Each form of an answer is the guide of its kind."""
    assert getattr((await told(engine, response_format=form)).guided_decoding, place) == value


async def test_forced_tool_call_is_guided_decoding(engine: TensorrtLlmEngine) -> None:
    """A tool that must be called holds the answer to the call's schema."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    guide = (await told(engine, tools=[tool], tool_choice="required")).guided_decoding

    assert guide.json is not None


async def test_cache_salt_and_priority_are_the_requests_own(engine: TensorrtLlmEngine) -> None:
    """The salt reaches the library; the priority does where the version has one, and is left alone where not."""
    await run(engine, planned(engine, cache_salt="s", priority=0.9))

    assert asked(engine)["cache_salt"] == "s"
    assert asked(engine).get("priority", 0.9) == 0.9


async def test_front_ends_fields_leave_the_library_alone(engine: TensorrtLlmEngine) -> None:
    """What is done here, before and after, changes nothing that the library is told."""
    plain = await told(engine, max_tokens=9)
    fields = {
        "stop": ["x"],
        "n": 2,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "add_special_tokens": True,
    }

    assert await told(engine, max_tokens=9, spaces_between_special_tokens=False, **fields) == plain


async def test_greedy_is_said_by_silence(engine: TensorrtLlmEngine) -> None:
    """At temperature 0 the library is told nothing of how to draw, which it takes as greedy."""
    params = await told(engine, temperature=0, top_p=0.5, top_k=3, seed=1)

    assert (params.temperature, params.top_p, params.top_k, params.seed) == (None, None, None, None)


async def test_seed_is_unsigned(engine: TensorrtLlmEngine) -> None:
    """A negative seed is the unsigned number of the same bits."""
    assert (await told(engine, seed=-1, **DRAWN)).seed == 2**64 - 1


async def test_tokens_are_asked_for_not_text(engine: TensorrtLlmEngine) -> None:
    """The library does not detokenize, and leaves the token that ended a sequence where it is."""
    params = await told(engine)

    assert (params.detokenize, params.include_stop_str_in_output, params.stop) == (False, True, None)


async def test_prompt_logprobs_use_nobodys_prefix(engine: TensorrtLlmEngine) -> None:
    """A cached prefix has no logits, so a request for a prompt's is salted with what nobody else has."""
    salts = set()
    for _ in range(2):
        await run(engine, planned(engine, prompt="hi", echo=True, logprobs=1))
        salts.add(asked(engine)["cache_salt"])

    assert len(salts) == 2


async def test_prompt_logprobs_of_a_long_prompt_are_refused(engine: TensorrtLlmEngine) -> None:
    """Logits of a long prompt would be gigabytes."""
    with pytest.raises(EngineRefused, match=str(MAX_PROMPT_LOGPROBS)):
        await run(
            engine,
            SequenceRequest(request_id="r", prompt=[65] * 2049, sampling=Sampling(max_tokens=1, prompt_logprobs=0)),
        )


# --- what comes back ---


def request_of(prompt: list[int] | None = None, **sampling: Any) -> SequenceRequest:
    """A greedy request. Any: fields of Sampling."""
    return SequenceRequest(
        request_id="r",
        prompt=prompt or list(b"hello"),
        sampling=Sampling(**{"max_tokens": 20, "temperature": 0.0, **sampling}),
    )


async def test_outputs_merge_while_the_reader_is_slow(engine: TensorrtLlmEngine) -> None:
    """What came in the meantime comes as one output."""
    async with aclosing(engine.generate(request_of(list(b"[[text:abcdefgh]]")))) as outputs:
        first = await anext(outputs)
        await asyncio.wait_for(behind(engine).executor.idle.wait(), 5)
        rest = [output async for output in outputs]

    assert len(rest) == 1
    assert bytes(token.data[0] for output in [first, *rest] for token in output.tokens if token.data) == b"abcdefgh"


async def test_characters_in_pieces_are_exact(engine: TensorrtLlmEngine) -> None:
    """Each token carries its own bytes, also where a character has several tokens."""
    outputs = await run(engine, request_of(list("[[text:🚀]]".encode())))

    assert [token.data for output in outputs for token in output.tokens] == [b"\xf0", b"\x9f", b"\x9a", b"\x80", b""]


async def test_end_token_is_no_text(engine: TensorrtLlmEngine) -> None:
    """The token that ended the sequence is its last one, without bytes, and no stop token of the request's."""
    last = (await run(engine, request_of(list(b"[[text:a]]"))))[-1]

    assert (last.tokens[-1].id, last.tokens[-1].data, last.finish_reason, last.stop_token) == (END, b"", "stop", None)


async def test_alternatives_are_as_many_as_asked_for(engine: TensorrtLlmEngine) -> None:
    """The library tells the drawn token beside the likeliest ones; what was not asked for is left out."""
    bias = {65: 20.0}
    outputs = await run(engine, request_of(logprobs=2, logit_bias=bias, max_tokens=2))

    assert [len(token.top) for output in outputs for token in output.tokens] == [2, 2]


async def test_strange_end_is_an_error(engine: TensorrtLlmEngine) -> None:
    """A sequence that the library ended for no reason we know fails; one it cancelled unasked does too."""
    for reason in ("timeout", "cancelled"):
        result = RequestOutput(1, [1], lambda _: None)
        behind(engine).ask = lambda *_, _result=result, **__: _result  # type: ignore[method-assign]
        try:
            result.put(Response(finish_reason=reason))
            with pytest.raises(RuntimeError):
                await run(engine, request_of())
        finally:
            del behind(engine).ask


@pytest.mark.parametrize("error", [ValueError("too long"), RuntimeError("too long")])
async def test_request_the_library_refuses_is_the_clients(
    error: Exception, newer: TensorrtLlmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the library refuses at once is refused without its words; if it refuses because it is going down, it is dead."""

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(behind(newer), "ask", refuse)
    with pytest.raises(EngineRefused) as caught:
        await run(newer, request_of())
    assert "too long" not in str(caught.value)


async def test_library_that_goes_down_is_dead() -> None:
    """A refusal of a library that is shutting down is no fault of the request's."""
    async with started(NEWER) as engine:
        behind(engine).executor.dead = True

        with pytest.raises(EngineDead):
            await run(engine, request_of())


async def test_handoff_without_an_id_is_none(newer: TensorrtLlmEngine) -> None:
    """What an engine says without an id to go on from is a failed hand-off, not a reply."""
    assert newer._loaded is not None
    handoffs = make_service(newer, newer._loaded.facts).handoffs
    params = DisaggregatedParams(request_type="context_only")

    with pytest.raises(ServingError) as caught:
        handoffs.told_by_engine(params, params)
    assert caught.value.code == "handoff_failed"


# --- stop tokens and min_tokens ---


async def test_stop_tokens_are_held_back() -> None:
    """For so many tokens the logits of stop tokens are pushed out of reach, then left alone."""
    hold = HoldBack([1, 2], 1)
    first, second = Tensor([0.0] * 4), Tensor([0.0] * 4)
    hold(0, first, [[]], None, None)
    hold(0, second, [[]], None, None)

    assert (list(first), list(second)) == ([0.0, float("-inf"), float("-inf"), 0.0], [0.0] * 4)


async def test_processor_is_passed_only_where_needed(engine: TensorrtLlmEngine) -> None:
    """The library's own min_tokens holds the end token back; ours comes in for stop tokens."""
    without = await told(engine, min_tokens=2, max_tokens=9)
    with_ = await told(engine, min_tokens=2, max_tokens=9, stop_token_ids=[9])

    assert (without.logits_processor, with_.logits_processor.tokens) == (None, [9])


# --- the calls ---


async def test_nothing_unwritten_is_passed(engine: TensorrtLlmEngine) -> None:
    """A call with a parameter that is not written down is a mistake of ours, whatever the library would say."""
    with pytest.raises(KeyError):
        engine._library.sampling_params(max_tokens=1, n=2)
    with pytest.raises(KeyError):
        engine._library.sampling_params.takes("n")


async def test_stand_in_is_as_strict_as_documented() -> None:
    """The stand-ins refuse unknown parameters and values of the wrong type, or nothing would be proved by them."""
    with installed(NEWER):
        from tensorrt_llm import SamplingParams
    with pytest.raises(TypeError):
        SamplingParams(wings=2)
    with pytest.raises(TypeError):
        SamplingParams(max_tokens="3")
    with pytest.raises(ValueError, match="temperature"):
        SamplingParams(temperature=0.0)

    assert Logprob(-1.0).rank is None
