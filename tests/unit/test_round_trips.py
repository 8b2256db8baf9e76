"""Every type of the schema comes back as it went, through msgpack, through JSON, and from one to the other."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from schemas import codec
from schemas.openai.chat import ChatCompletionRequest, ChatView, TolerantChatView
from schemas.openai.completions import CompletionRequest, CompletionView, TolerantCompletionView
from tests.unit.struct_values import ANYTHING, TEXT, values_of
from tools.schemas.catalogue import EventBatch, wire_types

# They hold the client's JSON as it is: they are read as JSON and written as msgpack, never the other way round.
VIEWS = (ChatView, CompletionView, TolerantChatView, TolerantCompletionView)
ROUND = [*(type_ for type_ in wire_types() if type_ not in VIEWS), EventBatch]
PROMPTS = TEXT | st.lists(st.integers(0, 9), min_size=1)
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def name_of(type_: Any) -> str:
    """A type as a test's name shows it."""
    return str(getattr(type_, "__name__", "EventBatch"))


def states(value: Any) -> Any:
    """A value with what equality passes over: which fields are absent, and whether a number is one of the whole kind."""
    if isinstance(value, Struct):
        return [type(value), *(states(getattr(value, name)) for name in value.__struct_fields__)]
    if isinstance(value, list | tuple):
        return [states(part) for part in value]
    if isinstance(value, dict):
        return {key: states(part) for key, part in value.items()}
    return type(value), value


@pytest.mark.parametrize("type_", ROUND, ids=name_of)
@few
@given(data=st.data())
def test_a_value_survives_msgpack(type_: Any, data: st.DataObject) -> None:
    """What is written as a frame is read as it was: absent, null and a value stay apart."""
    value = data.draw(values_of(type_))

    assert states(msgspec.msgpack.decode(codec.encode_frame(value), type=type_)) == states(value)


@pytest.mark.parametrize("type_", ROUND, ids=name_of)
@few
@given(data=st.data())
def test_a_value_survives_json(type_: Any, data: st.DataObject) -> None:
    """The same through JSON."""
    value = data.draw(values_of(type_))

    assert states(msgspec.json.decode(codec.encode_json(value), type=type_)) == states(value)


@pytest.mark.parametrize("type_", ROUND, ids=name_of)
@few
@given(data=st.data())
def test_a_value_survives_both(type_: Any, data: st.DataObject) -> None:
    """A frame that is written as JSON and read again is the same frame."""
    frame = codec.encode_frame(data.draw(values_of(type_)))

    text = codec.encode_json(msgspec.msgpack.decode(frame, type=type_))

    assert codec.encode_frame(msgspec.json.decode(text, type=type_)) == frame


@pytest.mark.parametrize("type_", wire_types(), ids=name_of)
def test_nothing_is_left_out_for_being_a_default(type_: type[Struct]) -> None:
    """No type omits what equals its default: that would lose the difference between absent and set."""
    assert not type_.__struct_config__.omit_defaults


# --- the views ---


@few
@given(request=values_of(ChatCompletionRequest))
def test_a_chat_body_crosses_the_gateway_unchanged(request: ChatCompletionRequest) -> None:
    """A client's JSON read as a view, sent in either form, is at the worker what the worker would have read itself."""
    body = codec.encode_json(request)
    plain, _ = codec.read_chat_view(body)
    deferred, _ = codec.read_chat_view(body)
    codec.plain_form(plain)
    codec.deferred_form(deferred)

    assert states(codec.read_chat_frame(codec.encode_frame(plain))) == states(request)
    assert states(codec.read_chat_frame(codec.encode_frame(deferred))) == states(request)


@few
@given(request=values_of(CompletionRequest), prompt=PROMPTS)
def test_a_completions_body_crosses_the_gateway_unchanged(request: CompletionRequest, prompt: str | list[int]) -> None:
    """The same for completions: text and token ids arrive as they were sent."""
    request.prompt = prompt
    view, _ = codec.read_completion_view(codec.encode_json(request))
    codec.plain_form(view)

    assert states(codec.read_completion_frame(codec.encode_frame(view))) == states(request)


@few
@given(inside=ANYTHING)
def test_free_values_cross_the_gateway_unchanged(inside: Any) -> None:
    """What is in a message beside the known keys crosses as it was written."""
    body = codec.encode_json({"model": "m", "messages": [{"role": "user", "content": "a", "unknown": inside}]})
    view, _ = codec.read_chat_view(body)
    codec.plain_form(view)

    assert msgspec.msgpack.decode(codec.encode_frame(view)) == json.loads(body)
