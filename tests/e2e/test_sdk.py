"""The newest OpenAI SDK against a fleet of real processes."""

import json
import time
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.e2e.local_fleet import LocalFleet

HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 12}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def test_chat_answers_with_usage(client: OpenAI, model: str) -> None:
    """A whole reply has text, a finish reason and counts that add up."""
    reply = client.chat.completions.create(model=model, messages=HELLO, max_tokens=8, temperature=0)
    usage = reply.usage

    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason in {"stop", "length"}
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 8


def test_streamed_chat_says_the_same_as_a_whole_one(client: OpenAI, model: str) -> None:
    """The pieces of a stream are the text of the reply, with one role, one finish and usage at the end."""
    whole = client.chat.completions.create(model=model, messages=HELLO, max_tokens=8, temperature=0)
    options: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model=model, messages=HELLO, max_tokens=8, temperature=0, stream=True, stream_options=options
        )
    )
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]

    assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
    assert [choice.delta.role for choice in choices if choice.delta.role] == ["assistant"]
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_completion_streams_what_it_answers(client: OpenAI, model: str) -> None:
    """Completions agree with themselves, streamed and not."""
    whole = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, temperature=0)
    stream = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, temperature=0, stream=True)

    assert whole.choices[0].text
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == whole.choices[0].text


def test_completion_of_several_prompts(client: OpenAI, model: str) -> None:
    """A list of prompts is answered by a choice for each."""
    reply = client.completions.create(model=model, prompt=["a", "b", "c"], max_tokens=2)

    assert [choice.index for choice in reply.choices] == [0, 1, 2]


def test_several_choices(client: OpenAI, model: str) -> None:
    """`n` choices come back, each with its own finish."""
    reply = client.chat.completions.create(model=model, messages=HELLO, max_tokens=4, n=2, seed=1)

    assert [choice.index for choice in reply.choices] == [0, 1]
    assert all(choice.finish_reason for choice in reply.choices)


def test_models_are_listed_and_retrieved(client: OpenAI, model: str) -> None:
    """The model's own page is the entry of the list."""
    assert client.models.retrieve(model).id == model


def test_unknown_model_is_not_found(client: OpenAI) -> None:
    """The SDK raises its own NotFoundError, with OpenAI's code."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no-such-model", messages=HELLO)

    assert caught.value.code == "model_not_found"


def test_bad_parameter_is_named(client: OpenAI, model: str) -> None:
    """A value out of range is a BadRequestError about that parameter, also for a stream."""
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=model, messages=HELLO, temperature=9, stream=stream)

        assert caught.value.param == "temperature"


def test_logprobs_have_an_entry_per_token(client: OpenAI, model: str) -> None:
    """Log probabilities start with the first token, whichever worker sampled it."""
    reply = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2
    )
    logprobs, usage = reply.choices[0].logprobs, reply.usage

    assert logprobs is not None
    assert logprobs.content is not None
    assert usage is not None
    assert len(logprobs.content) == usage.completion_tokens
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in logprobs.content)


def test_required_tool_call_has_arguments_that_fit(client: OpenAI, model: str) -> None:
    """A forced tool call names the function and its arguments parse."""
    reply = client.chat.completions.create(
        model=model, messages=HELLO, tools=WEATHER, tool_choice="required", max_tokens=128, temperature=0
    )
    calls: Any = reply.choices[0].message.tool_calls

    assert calls[0].function.name == "get_weather"
    assert reply.choices[0].finish_reason == "tool_calls"
    assert '"city"' in calls[0].function.arguments


def test_json_schema_is_enforced(client: OpenAI, model: str) -> None:
    """The answer fits the schema."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": schema | {"additionalProperties": False}},
    }
    reply = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=64, temperature=0, response_format=form
    )

    assert json.loads(reply.choices[0].message.content or "") in ({"ok": True}, {"ok": False})


def test_closed_stream_frees_the_worker(fleet: LocalFleet, client: OpenAI, model: str) -> None:
    """A client that leaves early ends the work on every worker; the measured time has tenfold slack."""
    stream = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 10 * 0.1
    while any(fleet.metric(url, "packrelay_worker_in_flight") for url in fleet.workers.values()):
        assert time.monotonic() < deadline
