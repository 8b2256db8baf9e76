"""Fields that do not go together are refused, by name, by whoever reads the request first."""

from typing import Any

import msgspec
import pytest

from schemas.codec import (
    AnyChatView,
    AnyCompletionView,
    read_chat_json,
    read_chat_view,
    read_completion_json,
    read_completion_view,
)
from schemas.dialect import unify
from schemas.openai.chat import ChatCompletionRequest
from schemas.openai.completions import CompletionRequest
from schemas.openai.errors import ServingError
from schemas.openai.options import ResponseFormat
from schemas.openai.rules import candidates_of, check_together, explicit_limit, form_of

MESSAGES = [{"role": "user", "content": "a"}]
CLOCK = {"type": "function", "function": {"name": "clock"}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "clock"}}

CHAT_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"stream_options": {}}, "stream_options"),
    ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
    ({"max_completion_tokens": 3, "max_tokens": 9, "min_tokens": 4}, "min_tokens"),
    ({"n": 2, "best_of": 1}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": "required", "tools": []}, "tool_choice"),
    ({"tool_choice": NAMED, "tools": None}, "tool_choice"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "regex"}}, "response_format.regex"),
    ({"response_format": {"type": "ebnf", "ebnf": ""}}, "response_format.ebnf"),
]
CHAT_ACCEPTED: list[dict[str, Any]] = [
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream_options": None},
    {"top_logprobs": 2, "logprobs": True},
    {"top_logprobs": 0},
    {"max_tokens": 3, "min_tokens": 3},
    {"n": 2, "best_of": 3},
    {"n": 2, "best_of": 2, "stream": True},
    {"best_of": 0, "stream": True},
    {"tool_choice": "none"},
    {"tool_choice": "required", "tools": [CLOCK]},
    {"tool_choice": NAMED, "tools": [CLOCK]},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": True}}},
]


def chat(**fields: Any) -> tuple[AnyChatView, ChatCompletionRequest]:
    """A chat request as the gateway reads it, and as a worker does."""
    body = msgspec.json.encode({"model": "m", "messages": MESSAGES} | fields)
    return read_chat_view(body)[0], read_chat_json(body)


def completion(**fields: Any) -> tuple[AnyCompletionView, CompletionRequest]:
    """A completions request in both readings."""
    body = msgspec.json.encode({"model": "m", "prompt": "a"} | fields)
    return read_completion_view(body)[0], read_completion_json(body)


@pytest.mark.parametrize(("fields", "param"), CHAT_REFUSED)
def test_both_sides_refuse_what_does_not_go_together(fields: dict[str, Any], param: str) -> None:
    """A contradiction is a 400 that names the field to change, at the gateway and at a worker."""
    for reading in chat(**fields):
        with pytest.raises(ServingError) as refused:
            check_together(reading)

        assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize("fields", CHAT_ACCEPTED)
def test_both_sides_accept_what_does(fields: dict[str, Any]) -> None:
    """Neither side refuses more than the other."""
    for reading in chat(**fields):
        check_together(reading)


def test_completions_may_ask_for_no_tokens() -> None:
    """A completion of no tokens scores or echoes its prompt; there the limit is 16 where none is given."""
    for reading in completion(max_tokens=0):
        check_together(reading)
        assert explicit_limit(reading) == 0
    assert explicit_limit(completion()[1]) == 16


def test_least_number_of_tokens_raises_the_default_limit() -> None:
    """Who asks for at least 20 tokens, and for no limit, gets 20 and not an error."""
    for reading in completion(min_tokens=20):
        check_together(reading)
        assert explicit_limit(reading) == 20


def test_newer_name_of_the_limit_wins() -> None:
    """`max_completion_tokens` is what counts where both are sent, and without either chat has no limit of its own."""
    assert explicit_limit(chat(max_tokens=9, max_completion_tokens=3)[0]) == 3
    assert explicit_limit(chat(max_tokens=9)[0]) == 9
    assert explicit_limit(chat()[0]) is None


@pytest.mark.parametrize(
    ("fields", "count"), [({}, 1), ({"n": 2}, 2), ({"n": 2, "best_of": 5}, 5), ({"best_of": 0}, 1)]
)
def test_candidates(fields: dict[str, Any], count: int) -> None:
    """Each prompt runs best_of sequences, n without it."""
    assert candidates_of(chat(**fields)[0]) == count


def test_form_is_what_stands_beside_the_type() -> None:
    """A schema may be the value false; it is there."""
    format_ = msgspec.convert({"type": "json_schema", "json_schema": {"schema": False}}, ResponseFormat)

    assert form_of(format_) is False


def test_named_function_must_be_on_offer() -> None:
    """The gateway refuses a choice of a function that the request does not offer."""
    with pytest.raises(ServingError) as refused:
        unify(chat(tools=[WEATHER], tool_choice=NAMED)[0])

    assert refused.value.param == "tool_choice"


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_what_workers_see(mode: str) -> None:
    """No worker has to know allowed tools: it gets those that are left, as the client wrote them, and the mode."""
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "clock"}}]}
    tools = [WEATHER, CLOCK | {"extra": 2**70}]
    view = chat(tools=tools, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})[0]
    unify(view)

    assert view.tool_choice == mode
    assert msgspec.json.decode(bytes(memoryview(view.tools or b""))) == [CLOCK | {"extra": float(2**70)}]


@pytest.mark.parametrize("tools", [{}, [{"function": {"name": 5}}], ["clock"]])
def test_tools_that_are_none_are_refused_by_place(tools: Any) -> None:
    """What cannot be read for its name is the field `tools`' mistake."""
    with pytest.raises(ServingError) as refused:
        unify(chat_view(tools=tools, tool_choice=NAMED))

    assert str(refused.value.param).startswith("tools")


def chat_view(**fields: Any) -> AnyChatView:
    """A chat request that only the gateway can read."""
    return read_chat_view(msgspec.json.encode({"model": "m", "messages": MESSAGES} | fields))[0]
