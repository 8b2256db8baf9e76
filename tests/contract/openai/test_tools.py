"""Tools and structured output: every form of a choice, streamed or not; formats are enforced, or refused by name."""

import json
import re
from typing import Any

import jsonschema
import pytest

from tests.contract.openai.conftest import CHAT, Api, user

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
COUNT = {
    "type": "object",
    "properties": {"count": {"type": "integer"}},
    "required": ["count"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city", "parameters": CITY},
}
COUNTER = {"type": "function", "function": {"name": "count_to", "parameters": COUNT, "strict": True}}
SCHEMAS = {"get_weather": CITY, "count_to": COUNT}
QUESTION = user("What is the weather in Paris?")
NAMED = {"type": "function", "function": {"name": "count_to"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


def called(api: Api, choice: Any) -> dict[str, Any]:
    """The one call of an answer that was made to call. Any: choices are words or objects."""
    reply = api.chat(QUESTION, tools=[WEATHER, COUNTER], tool_choice=choice, max_tokens=200, temperature=0)
    answer = reply["choices"][0]
    (call,) = answer["message"]["tool_calls"]
    assert (answer["finish_reason"], answer["message"]["content"], call["type"]) == ("tool_calls", None, "function")
    assert call["id"]
    return dict(call["function"])


@pytest.mark.parametrize(
    ("choice", "names"), [("required", set(SCHEMAS)), (NAMED, {"count_to"}), (ALLOWED, {"count_to"})]
)
def test_forced_call_is_one_and_its_arguments_fit(api: Api, choice: Any, names: set[str]) -> None:
    """A call that is asked for is made: of a function that may be called, with arguments its schema allows."""
    function = called(api, choice)

    assert function["name"] in names
    jsonschema.validate(json.loads(function["arguments"]), SCHEMAS[function["name"]])


@pytest.mark.parametrize(
    "fields", [{"tool_choice": "none"}, {"tool_choice": "auto"}, {}, {"parallel_tool_calls": False}]
)
def test_tools_that_need_not_be_called_leave_room_for_words(api: Api, fields: dict[str, Any]) -> None:
    """Tools on offer are only an offer, however it is worded."""
    message = api.chat(QUESTION, tools=[WEATHER], **fields)["choices"][0]["message"]

    assert message["content"] or message["tool_calls"]


def test_streamed_call_begins_with_its_name(api: Api) -> None:
    """Index, id, type and name come first and once; the arguments come in pieces that make JSON; one finish."""
    chunks = api.chat_chunks(QUESTION, tools=[WEATHER], tool_choice="required", max_tokens=200, temperature=0)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    first, *others = [call for choice in choices for call in choice["delta"].get("tool_calls") or []]
    arguments = "".join(call["function"].get("arguments", "") for call in [first, *others])

    assert (first["index"], first["type"], first["function"]["name"], bool(first["id"])) == (
        0,
        "function",
        "get_weather",
        True,
    )
    assert not any("id" in call or "name" in call["function"] for call in others)
    jsonschema.validate(json.loads(arguments), CITY)
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": "auto", "tools": []},
        {"tool_choice": {"type": "function", "function": {"name": "nope"}}, "tools": [WEATHER]},
        {
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
            "tools": [WEATHER],
        },
        {"tool_choice": {}, "tools": [WEATHER]},
        {"tool_choice": 5, "tools": [WEATHER]},
        {"tool_choice": "sometimes", "tools": [WEATHER]},
    ],
)
def test_choice_that_cannot_be_made_is_refused(api: Api, fields: dict[str, Any]) -> None:
    """A choice needs the tools it speaks of."""
    assert api.refusal(CHAT, **fields)["param"].startswith("tool_choice")


NO_TOOLS: list[Any] = [
    {"type": "custom", "custom": {"name": "c"}},
    {"function": {"name": "f"}},
    {"type": "function", "function": {"name": ""}},
    None,
]


@pytest.mark.parametrize("tool", NO_TOOLS)
def test_tool_that_is_none_is_refused_by_place(api: Api, tool: Any) -> None:
    """The place of what is wrong is named."""
    assert api.refusal(CHAT, tools=[tool])["param"].startswith("tools[0]")


def test_results_of_calls_are_read(api: Api) -> None:
    """Calls of earlier turns and their results, in parts or in words, are part of the conversation."""
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{not json"}}
    answer = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "18 degrees"}]}

    assert api.chat(QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}, answer)["choices"]


def formatted(api: Api, **fields: Any) -> str:
    """The text of an answer that was held to a format."""
    reply = api.chat(user("Describe a cat."), max_tokens=200, temperature=0, **fields)
    assert reply["choices"][0]["finish_reason"] == "stop"
    return str(reply["choices"][0]["message"]["content"])


def test_json_object_is_one(api: Api) -> None:
    """Any object, but an object."""
    assert isinstance(json.loads(formatted(api, response_format={"type": "json_object"})), dict)


def test_tools_and_a_format_go_together(api: Api) -> None:
    """With both, and nothing forced, the answer is in its form, or it is a call whose arguments are in theirs."""
    choice = api.chat(QUESTION, tools=[WEATHER], response_format=OPENAI_SCHEMA, max_tokens=200, temperature=0)[
        "choices"
    ][0]
    calls = choice["message"].get("tool_calls")
    said = calls[0]["function"]["arguments"] if calls else choice["message"]["content"]

    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    jsonschema.validate(json.loads(said), CITY if calls else COUNT)


OPENAI_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": COUNT}}
TENSORRT_SCHEMA = {"type": "json", "schema": COUNT}


@pytest.mark.parametrize("format_", [OPENAI_SCHEMA, TENSORRT_SCHEMA])
def test_schema_is_enforced(api: Api, format_: dict[str, Any]) -> None:
    """OpenAI's form of it, and TensorRT-LLM's."""
    jsonschema.validate(json.loads(formatted(api, response_format=format_)), COUNT)


@pytest.mark.parametrize(
    "format_", [{"type": "regex", "regex": "(yes|no)"}, {"type": "ebnf", "ebnf": 'root ::= "yes" | "no"'}]
)
def test_other_forms_are_enforced_or_refused(api: Api, format_: dict[str, Any]) -> None:
    """An engine that cannot hold the text to a form says so; none ignores it."""
    asked = {"model": api.model, "messages": [user("Yes or no?")], "response_format": format_, "max_tokens": 8}
    reply = api.http.post(CHAT, json=asked)
    body = reply.json()

    if reply.status_code == 400:
        assert (body["error"]["param"], body["error"]["code"]) == ("response_format", "unsupported_parameter")
    else:
        assert re.fullmatch("yes|no", body["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    "format_",
    [
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "a"}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "hiccup"}}},
        {"type": "yaml"},
        {"type": "regex"},
        {},
        "json_object",
    ],
)
def test_format_that_is_none_is_refused(api: Api, format_: Any) -> None:
    """Never silently dropped."""
    assert api.refusal(CHAT, response_format=format_)["param"].startswith("response_format")
