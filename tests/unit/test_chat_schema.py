"""The chat types against the public API document, and the three states of their fields."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Struct

from schemas import codec
from schemas.openai.chat import (
    AssistantMessage,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatDelta,
    ChatMessage,
    ChatView,
    ContentPart,
    DeferredChatRequest,
    FunctionDefinition,
    TolerantChatView,
    Tool,
    ToolCallDelta,
)
from schemas.openai.errors import ErrorBody, ErrorObject
from schemas.openai.logprobs import ChatTokenLogprob
from schemas.openai.models import Model, ModelList
from schemas.openai.options import StreamOptions
from schemas.openai.usage import Usage
from tests.contract.material import properties, validator

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
REQUIRED = {"model", "messages"}
OPTIONAL = sorted(set(ChatCompletionRequest.__struct_fields__) - REQUIRED)

UNUSED = "never written: nothing here has it to say, and clients take its absence"
OTHER_PRODUCT = "belongs to a service of theirs"
LEFT_OUT: dict[str, str] = {
    "CreateChatCompletionResponse.metadata": "echo of stored completions, which there are none of",
    "CreateChatCompletionResponse.service_tier": OTHER_PRODUCT,
    "CreateChatCompletionResponse.system_fingerprint": UNUSED,
    "CreateChatCompletionResponse.moderation": OTHER_PRODUCT,
    "CreateChatCompletionStreamResponse.service_tier": OTHER_PRODUCT,
    "CreateChatCompletionStreamResponse.system_fingerprint": UNUSED,
    "CreateChatCompletionStreamResponse.moderation": OTHER_PRODUCT,
    "CreateChatCompletionStreamResponse.obfuscation": "padding against traffic analysis: left to TLS",
    "ChatCompletionResponseMessage.annotations": "results of web search, which there is none of",
    "ChatCompletionResponseMessage.audio": "text models only",
    "ChatCompletionResponseMessage.function_call": "replaced by tool_calls; requests that ask for it are refused",
    "ChatCompletionStreamResponseDelta.function_call": "replaced by tool_calls; requests that ask for it are refused",
    "ChatCompletionStreamResponseDelta.refusal": "no model here reports refusals apart from its text",
    "ChatCompletionRequestAssistantMessage.audio": "text models only; crosses to the worker as the client wrote it",
    "CompletionUsage.completion_tokens_details": UNUSED,
    "Model.shutdown_date": UNUSED,
}

COVERED: list[tuple[type[Struct], str]] = [
    (ChatCompletionRequest, "CreateChatCompletionRequest"),
    (ChatView, "CreateChatCompletionRequest"),
    (DeferredChatRequest, "CreateChatCompletionRequest"),
    (ChatCompletion, "CreateChatCompletionResponse"),
    (ChatCompletionChunk, "CreateChatCompletionStreamResponse"),
    (AssistantMessage, "ChatCompletionResponseMessage"),
    (ChatDelta, "ChatCompletionStreamResponseDelta"),
    (ToolCallDelta, "ChatCompletionMessageToolCallChunk"),
    (ChatTokenLogprob, "ChatCompletionTokenLogprob"),
    (Usage, "CompletionUsage"),
    (Model, "Model"),
    (ModelList, "ListModelsResponse"),
    (ErrorObject, "Error"),
    (ErrorBody, "ErrorResponse"),
    (Tool, "ChatCompletionTool"),
    (FunctionDefinition, "FunctionObject"),
    (ChatMessage, "ChatCompletionRequestSystemMessage"),
    (ChatMessage, "ChatCompletionRequestDeveloperMessage"),
    (ChatMessage, "ChatCompletionRequestUserMessage"),
    (ChatMessage, "ChatCompletionRequestAssistantMessage"),
    (ChatMessage, "ChatCompletionRequestToolMessage"),
    (ChatMessage, "ChatCompletionRequestFunctionMessage"),
    (ContentPart, "ChatCompletionRequestMessageContentPartRefusal"),
]

EXTENSIONS = {
    # Of both endpoints, then of chat alone. OpenAI's chat has no `best_of`; TensorRT-LLM's does.
    "best_of use_beam_search top_k top_p_min min_p repetition_penalty length_penalty early_stopping stop_token_ids",
    "include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens",
    "truncate_prompt_tokens thinking_token_budget prompt_ignore_length lora_request response_format",
    "disaggregated_params conversation_params priority add_special_tokens",
    "prompt_token_ids prompt_token_ids_b64 thinking echo add_generation_prompt documents chat_template",
    "chat_template_kwargs media_io_kwargs cache_salt agent_hierarchy mm_processor_kwargs",
}

VALUES: dict[str, Any] = {
    "temperature": 0,
    "top_p": 1,
    "top_k": 0,
    "n": 1,
    "seed": 0,
    "stream": False,
    "stop": [],
    "logit_bias": {},
    "frequency_penalty": 0,
    "stream_options": {},
    "tool_choice": "none",
    "logprobs": False,
    "top_logprobs": 0,
    "min_tokens": 0,
    "ignore_eos": False,
    "skip_special_tokens": True,
    "metadata": {},
    "tools": [],
}


def read(**fields: Any) -> ChatCompletionRequest:
    """A request with these fields, as a worker reads its JSON."""
    return codec.read_chat_json(msgspec.json.encode(BODY | fields))


@pytest.mark.parametrize(("struct", "schema"), COVERED)
def test_every_property_is_a_field_or_left_out_for_a_reason(struct: type[Struct], schema: str) -> None:
    """What the API document has, we have, or say why not."""
    missing = {f"{schema}.{name}" for name in properties(schema)} - {f"{schema}.{n}" for n in struct.__struct_fields__}

    assert missing == {entry for entry in LEFT_OUT if entry.startswith(f"{schema}.")}


def test_stream_options_are_covered() -> None:
    """Every stream option of the API document is a field."""
    documented = validator("ChatCompletionStreamOptions")

    assert documented.is_valid({"include_usage": True, "include_obfuscation": False})
    assert {"include_usage", "include_obfuscation"} <= set(StreamOptions.__struct_fields__)


def test_every_extension_is_a_field() -> None:
    """Every field a stock worker has beyond the API document is ours too."""
    assert {name for line in EXTENSIONS for name in line.split()} <= set(ChatCompletionRequest.__struct_fields__)


def test_readings_have_the_same_fields() -> None:
    """The four readings of a chat request differ in how they read, not in what."""
    readings = (ChatCompletionRequest, ChatView, TolerantChatView, DeferredChatRequest)

    assert len({frozenset(reading.__struct_fields__) for reading in readings}) == 1


@pytest.mark.parametrize("name", OPTIONAL)
def test_absent_and_null_stay_apart(name: str) -> None:
    """An absent field is UNSET and stays absent; a null one is None and stays null; through JSON and through msgpack."""
    for body, value in ((BODY, UNSET), (BODY | {name: None}, None)):
        from_json = codec.read_chat_json(msgspec.json.encode(body))
        from_frame = codec.read_chat_frame(msgspec.msgpack.encode(body))

        assert getattr(from_json, name) is getattr(from_frame, name) is value
        assert msgspec.msgpack.decode(codec.encode_frame(from_json)) == body
        assert msgspec.json.decode(codec.encode_json(from_frame)) == body


@pytest.mark.parametrize(("name", "value"), VALUES.items())
def test_value_equal_to_the_default_is_sent(name: str, value: object) -> None:
    """A field that was set is sent, also when it is false, zero, empty or what the default would be."""
    body = BODY | {name: value}

    assert msgspec.msgpack.decode(codec.encode_frame(read(**{name: value}))) == body
    view, _ = codec.read_chat_view(msgspec.json.encode(body))
    codec.plain_form(view)
    assert msgspec.msgpack.decode(codec.encode_frame(view)) == body


@pytest.mark.parametrize("name", sorted(properties("CreateChatCompletionRequest")))
def test_documented_bounds_are_accepted(name: str) -> None:
    """The ends of a documented range, and the documented default, are values that can be sent."""
    schema = properties("CreateChatCompletionRequest")[name]
    ranges = [part for part in (schema, *schema.get("anyOf", [])) if "properties" not in part]
    for part in ranges:
        for key in ("minimum", "maximum", "default"):
            if key in part and name != "seed":  # its documented ends are rounded doubles, beyond int64
                read(**{name: part[key]})


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
        {"temperature": 2},
        {"stop": ["a"] * 4},
        {"stop": ""},
        {"logit_bias": {"50256": -100}},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
        {"response_format": {"type": "regex", "regex": "a+"}},
        {"early_stopping": "never"},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": None}}]},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f"}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": []}, {"role": "tool", "tool_call_id": "a", "content": "x"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}], "name": "y"}
            ]
        },
        {"messages": [{"role": "custom", "content": ""}]},
    ],
)
def test_what_clients_send_is_read(fields: dict[str, Any]) -> None:
    """Values that are unusual and right are accepted."""
    assert read(**fields).model == "m"


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -0.1},
        {"top_p": 1.1},
        {"presence_penalty": 2.1},
        {"n": 0},
        {"top_logprobs": 21},
        {"logit_bias": {"1": 100.5}},
        {"seed": -(2**63) - 1},
        {"max_completion_tokens": 0},
        {"max_completion_tokens": 2**63},
        {"max_tokens": -1},
        {"stop": ["a"] * 17},
        {"top_k": -2},
        {"prompt_token_ids": [-1]},
        {"prompt_token_ids": [2**31]},
        {"stop_token_ids": [2**40]},
        {"truncate_prompt_tokens": 0},
        {"cache_salt": ""},
        {"priority": 1.5},
        {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
        {"tools": [{"type": "function"}]},
        {"tool_choice": {"type": "allowed_tools"}},
        {"disaggregated_params": {"request_type": "x", "schedule_style": 2}},
        {"disaggregated_params": {"request_type": "x", "disagg_request_id": 2**63}},
        {"disaggregated_params": {}},
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(fields: dict[str, Any]) -> None:
    """Every bounded field is held to its bounds, and the refusal names it."""
    with pytest.raises(codec.DecodeFailure) as caught:
        read(**fields)
    assert (caught.value.param or "").startswith(next(iter(fields)))


def test_stock_reply_is_read() -> None:
    """A stock worker's reply, which writes null for everything it has not got, is read as ours is."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "hi",
        "reasoning_content": None,
        "reasoning": None,
        "tool_calls": [],
    }
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "mm_embedding_handle": None}
    reply = {"id": "chatcmpl-1", "created": 1, "model": "m", "choices": [choice], "prompt_token_ids": None, "usage": {}}

    read_reply = msgspec.json.decode(msgspec.json.encode(reply), type=ChatCompletion)
    assert read_reply.choices[0].message.content == "hi"
