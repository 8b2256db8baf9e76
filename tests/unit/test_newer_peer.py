"""What a peer of a later release may send: unknown fields, unknown tags, unknown words, null where there was a value."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from schemas import codec
from schemas.events import Delta, Event, Failed, Started
from schemas.nulls import LenientDecoder, drop_nulls
from schemas.openai.chat import ChatCompletion, ChatCompletionRequest, FunctionCall
from schemas.openai.errors import ErrorKind
from schemas.openai.usage import Usage
from tools.schemas.catalogue import MESSAGES, EventBatch, reachable, wire_types
from tools.schemas.samples import Size, sample

PEERS = {name: type_ for name, type_ in MESSAGES.items() if type_ is not EventBatch}
INSIDE = {name for type_ in PEERS.values() for name in reachable(type_)}
PARTS = [type_ for type_ in wire_types() if type_.__name__ in INSIDE]
OPTIONAL = [
    (type_, field.encode_name) for type_ in PARTS for field in msgspec.structs.fields(type_) if not field.required
]
UNKNOWN = {"from_the_future": {"a": [1, None]}}


def plain(type_: Any, size: Size = Size.MINIMAL) -> dict[str, Any]:
    """A sample as plain values."""
    made: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(sample(type_, size)))
    return made


def read(type_: Any, value: object) -> Any:
    """The value as a peer would send it, read here."""
    return LenientDecoder(msgspec.msgpack.Decoder(type_)).decode(msgspec.msgpack.encode(value))


@pytest.mark.parametrize("type_", PARTS, ids=lambda type_: type_.__name__)
def test_unknown_fields_are_passed_over(type_: type[Struct]) -> None:
    """A field that is not known here changes nothing, in any part of any message."""
    assert read(type_, plain(type_, Size.FULL) | UNKNOWN) == sample(type_, Size.FULL)


@pytest.mark.parametrize(("type_", "name"), OPTIONAL, ids=str)
def test_null_is_taken_for_every_optional_field(type_: type[Struct], name: str) -> None:
    """Null is itself where a field has a null, and the field's default where it has none."""
    expected = sample(type_, Size.MINIMAL)

    got = read(type_, plain(type_) | {name: None})

    assert getattr(got, name) in (None, getattr(expected, name))
    assert msgspec.structs.replace(got, **{name: getattr(expected, name)}) == expected


def test_nulls_are_taken_everywhere_at_once() -> None:
    """A reply of a stock worker spells out every field: what it does not have is null, at every depth."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "a", "reasoning_content": None, "tool_calls": None},
    }
    choices = [choice | {"stop_reason": None, "disaggregated_params": None}, choice]
    body = {
        "id": "x",
        "created": 1,
        "model": "m",
        "choices": choices,
        "usage": {"prompt_tokens": 2, "total_tokens": None},
    }

    reply = codec.json_decoder(ChatCompletion).decode(msgspec.json.encode(body))

    assert [made.message.content for made in reply.choices] == ["a", "a"]
    assert [made.message.tool_calls or [] for made in reply.choices] == [[], []]
    assert reply.usage == Usage(prompt_tokens=2)


def test_a_wrong_value_stays_wrong() -> None:
    """Leniency is about null: a value of another type is refused, also beside a null that is not."""
    decoder = codec.msgpack_decoder(Usage)

    with pytest.raises(msgspec.ValidationError, match="total_tokens"):
        decoder.decode(msgspec.msgpack.encode({"prompt_tokens": None, "total_tokens": "two"}))


def test_a_wrong_value_is_not_looked_at_twice() -> None:
    """Only a null is a reason to read a message again: a large body that is wrong is not made into objects for nothing."""
    wrong = msgspec.json.encode({"prompt_tokens": "two", "total_tokens": None})

    with pytest.raises(msgspec.ValidationError, match="prompt_tokens"):
        codec.json_decoder(Usage).decode(wrong)


def test_a_required_field_is_not_null() -> None:
    """A field without a default has nothing that null could stand for."""
    with pytest.raises(msgspec.ValidationError, match="request_id"):
        read(MESSAGES["AbortRequest"], {"request_id": None})


def test_a_message_without_nulls_is_left_alone() -> None:
    """Nothing is taken out of what fits."""
    value = plain(ChatCompletionRequest, Size.FULL)

    assert not drop_nulls(value, ChatCompletionRequest)
    assert value == plain(ChatCompletionRequest, Size.FULL)


@pytest.mark.parametrize("reader", [codec.read_chat_json, codec.read_chat_frame])
def test_a_worker_takes_nulls_in_a_conversation(reader: Callable[[bytes], ChatCompletionRequest]) -> None:
    """Clients echo calls with fields they have no value for; the worker reads them in both encodings."""
    call = {"id": "1", "type": None, "function": {"name": "f", "arguments": None}}
    body = {"model": "m", "messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    encode = msgspec.json.encode if reader is codec.read_chat_json else msgspec.msgpack.encode

    (made,) = reader(encode(body)).messages[0].tool_calls or []

    assert (made.type, made.function) == ("function", FunctionCall(name="f", arguments=""))


# --- events ---


def events(*sent: dict[str, Any]) -> tuple[list[Event], int]:
    """What is read of a batch that a peer sent, and how many of it were skipped."""
    pairs, skipped = codec.read_events(msgspec.msgpack.encode([[1, event] for event in sent]))
    return [event for _, event in pairs], skipped


@pytest.mark.parametrize("tag", ["applause", "", "Delta", None, 7, ["delta"], {}])
def test_an_unknown_tag_costs_only_itself(tag: object) -> None:
    """The events beside it are read, and it is counted."""
    known = {"type": "delta", "text": "a"}

    assert events(known, {"type": tag, "volume": 11}, known) == ([Delta(text="a"), Delta(text="a")], 1)


def test_an_end_that_is_unknown_is_a_failure() -> None:
    """An event of an unknown tag that says it is the last ends its stream, as a failure; it is counted with the others."""
    (failed,), skipped = events({"type": "curtain", "last": True, "applause": 11})

    assert isinstance(failed, Failed)
    assert (failed.kind, failed.code, skipped) == (ErrorKind.BAD_WORKER, "unknown_end", 1)


@pytest.mark.parametrize("last", [False, None, 1, "true", [True]])
def test_only_true_means_last(last: object) -> None:
    """Whatever else stands there ends nothing."""
    assert events({"type": "curtain", "last": last}) == ([], 1)


def test_what_has_a_known_tag_ends_as_that_tag_says() -> None:
    """`last` has no meaning where the tag is known."""
    assert events({"type": "delta", "text": "a", "last": True}) == ([Delta(text="a")], 0)


def test_an_unknown_finish_reason_is_passed_on() -> None:
    """Finish reasons are words: one that is not known here reaches the client."""
    assert events({"type": "delta", "finish_reason": "enlightened"}) == ([Delta(finish_reason="enlightened")], 0)


def test_nulls_in_events_are_defaults() -> None:
    """Null in an event is its default, and the other events of the batch are as they are."""
    made, skipped = events(
        {"type": "started", "created": 1, "prompt_tokens": None}, {"type": "delta", "logprobs": None}
    )

    assert (made, skipped) == ([Started(created=1), Delta()], 0)
