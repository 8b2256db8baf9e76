"""What a kind of worker does not know never reaches it."""

from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import GatewayConfig
from schemas import codec
from schemas.codec import AnyChatView, AnyCompletionView
from schemas.dialect import (
    HARMLESS,
    NEUTRAL,
    PACKRELAY,
    STOCK,
    STOCK_2026_06,
    STOCK_2026_07,
    STOCK_DIALECTS,
    Dialect,
    for_stock,
    unify,
)
from schemas.openai.chat import AssistantMessage, ChatChoice, ChatCompletion, ChatView
from schemas.openai.completions import CompletionView
from schemas.openai.errors import ServingError
from schemas.openai.logprobs import ChatLogprobs
from tests.stock.protocol import ChatRequest
from tests.stock.protocol import CompletionRequest as StockCompletion

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hello"}
WOULD_CHANGE: dict[str, Any] = {
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
    "verbosity": "low",
    "web_search_options": {},
    "moderation": {"model": "x"},
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
}


def chat(**fields: Any) -> AnyChatView:
    """The gateway's view of a chat request with these fields."""
    return codec.read_chat_view(msgspec.json.encode(CHAT | fields))[0]


def completion(**fields: Any) -> AnyCompletionView:
    """The same for completions."""
    return codec.read_completion_view(msgspec.json.encode(COMPLETION | fields))[0]


def sent(view: AnyChatView | AnyCompletionView) -> dict[str, Any]:
    """What a stock worker gets of a view."""
    unify(view)
    STOCK.fit(view)
    codec.plain_form(view)
    body: dict[str, Any] = msgspec.msgpack.decode(codec.encode_frame(view))
    return body


def stock_names(model: type[ChatRequest] | type[StockCompletion]) -> set[str]:
    """The names a stock worker knows."""
    return set(model.model_fields)


def test_stock_dialect_is_what_a_stock_worker_knows() -> None:
    """The fields that may reach a stock worker are fields of its own models."""
    chat_known = set(ChatView.__struct_fields__) - STOCK.unknown_chat
    completion_known = set(CompletionView.__struct_fields__) - STOCK.unknown_completion

    assert chat_known == stock_names(ChatRequest) | {"add_special_tokens"}
    assert completion_known == stock_names(StockCompletion)


def test_our_own_workers_know_everything() -> None:
    """Nothing is taken from a request to a packrelay worker, and it may be deferred."""
    assert not PACKRELAY.unknown_chat | PACKRELAY.unknown_completion
    assert (PACKRELAY.deferred, STOCK.deferred) == (True, False)


@pytest.mark.parametrize("name", sorted(STOCK.unknown_chat - {"max_tokens"}))
@pytest.mark.parametrize("value", [None, False])
def test_null_and_false_are_dropped(name: str, value: object) -> None:
    """A field that asks for nothing is dropped, whatever it is."""
    view = chat()
    setattr(view, name, value)

    assert sent(view) == CHAT


@pytest.mark.parametrize("name", sorted(HARMLESS & STOCK.unknown_chat))
def test_harmless_field_is_dropped(name: str) -> None:
    """A field that cannot change the answer is dropped, whatever its value."""
    view = chat()
    setattr(view, name, {"anything": 1})

    assert sent(view) == CHAT


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in NEUTRAL.items() for value in values])
def test_neutral_value_is_dropped(name: str, value: object) -> None:
    """A value that asks for what happens anyway is dropped."""
    view: AnyChatView | AnyCompletionView = completion() if name == "suffix" else chat()
    setattr(view, name, value)

    assert name not in sent(view)


@pytest.mark.parametrize(("name", "value"), WOULD_CHANGE.items())
def test_field_that_would_change_the_answer_is_refused(name: str, value: object) -> None:
    """Anything else is a 400 that names the field: a wrong answer would be worse."""
    view = chat()
    setattr(view, name, value)
    with pytest.raises(ServingError) as caught:
        STOCK.fit(view)

    assert (caught.value.status, caught.value.param, caught.value.code) == (400, name, "unsupported_parameter")


def test_every_unknown_field_is_dropped_or_refused() -> None:
    """No field outside the dialect has been forgotten by the lists above; the limit has another name, and the switch two values."""
    listed = HARMLESS & STOCK.unknown_chat | set(WOULD_CHANGE) | {"max_tokens", "parallel_tool_calls"}

    assert listed == STOCK.unknown_chat
    assert {"suffix"} == STOCK.unknown_completion


def test_suffix_is_refused() -> None:
    """No engine here fills in the middle."""
    with pytest.raises(ServingError) as caught:
        STOCK.fit(completion(suffix="end"))
    assert caught.value.param == "suffix"


@given(st.dictionaries(st.sampled_from(sorted(ChatView.__struct_fields__)), st.none()))
def test_stock_worker_never_gets_an_unknown_field(nulls: dict[str, None]) -> None:
    """Whatever a request holds, what is left of it are names the stock worker knows."""
    assert set(sent(chat(**{name: None for name in nulls if name not in CHAT}))) <= stock_names(ChatRequest)


# --- unify ---


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({}, {}),
        ({"max_tokens": 5}, {"max_completion_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 7}, {"max_completion_tokens": 7}),
        ({"max_tokens": 5, "max_completion_tokens": None}, {"max_completion_tokens": 5}),
        ({"max_tokens": None}, {}),
        ({"max_tokens": None, "max_completion_tokens": 7}, {"max_completion_tokens": 7}),
    ],
)
def test_older_name_of_the_limit_becomes_the_newer(limits: dict[str, Any], left: dict[str, int]) -> None:
    """A chat's `max_tokens` is sent as `max_completion_tokens`, which wins when both are there."""
    assert sent(chat(**limits)) == CHAT | left


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, {"include_usage": False}),
        ({"include_usage": None}, {"include_usage": False}),
        ({"include_usage": True}, {"include_usage": True}),
        (
            {"include_usage": True, "continuous_usage_stats": True},
            {"include_usage": True, "continuous_usage_stats": True},
        ),
        ({"include_obfuscation": True}, {"include_usage": False}),
    ],
)
def test_usage_default_is_said_out_loud(options: dict[str, Any], left: dict[str, bool]) -> None:
    """A stock worker's default of include_usage is not OpenAI's, so it is sent; what it would refuse is not."""
    for view in (chat(stream=True, stream_options=options), completion(stream=True, stream_options=options)):
        assert sent(view)["stream_options"] == left


def test_null_stream_options_stay_null() -> None:
    """Null is passed on as null."""
    assert sent(chat(stream_options=None))["stream_options"] is None


def test_reply_for_a_stock_orchestrator_has_no_refusal() -> None:
    """A stock orchestrator forbids unknown keys in replies too; ours and OpenAI's clients have the null."""
    choice = ChatChoice(message=AssistantMessage(content="hi"), logprobs=ChatLogprobs(content=[]))
    reply = ChatCompletion(id="chatcmpl-1", created=1, model="m", choices=[choice])
    assert codec.encode_json(reply).count(b'"refusal":null') == 2
    for_stock(reply)

    assert b"refusal" not in codec.encode_json(reply)


def test_unify_twice_is_once() -> None:
    """A request that is settled is not changed again."""
    view = chat(max_tokens=5, stream=True, stream_options={})
    unify(view)

    assert sent(view) == CHAT | {"max_completion_tokens": 5, "stream": True, "stream_options": {"include_usage": False}}


# --- stock workers over time ---


def test_dialects_are_found_by_name_newest_first() -> None:
    """What an operator may say is what there is."""
    assert [dialect.name for dialect in STOCK_DIALECTS.values()] == ["stock", "stock-2026-07", "stock-2026-06"]
    assert set(get_args(get_type_hints(GatewayConfig)["dialect"])) == {"auto", *STOCK_DIALECTS}


@pytest.mark.parametrize(
    ("dialect", "left"),
    [
        (PACKRELAY, {"conversation_id", "resolved_thinking", "return_prompt_token_ids_b64"}),
        (STOCK, {"resolved_thinking", "return_prompt_token_ids_b64"}),
        (STOCK_2026_07, {"conversation_id", "return_prompt_token_ids_b64"}),
        (STOCK_2026_06, {"conversation_id"}),
    ],
)
def test_handoff_has_the_keys_a_dialect_knows(dialect: Dialect, left: set[str]) -> None:
    """Each of the three keys that came or went is left out where it would be refused."""
    params = {"conversation_id": "a", "resolved_thinking": None, "return_prompt_token_ids_b64": True}

    assert set(dialect.fit_params(params)) == left
    assert dialect.takes_ids_b64 is ("return_prompt_token_ids_b64" in left)
