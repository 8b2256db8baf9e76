"""Frames and bodies: what is read is what was written, and every way to be malformed is one failure."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgpack  # type: ignore[import-untyped]  # the package carries no types
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import codec
from schemas.codec import DecodeFailure
from schemas.disagg import OpaqueState
from schemas.events import Delta, Done, Event, Failed, Started
from schemas.openai.completions import CompletionRequest
from schemas.openai.errors import ErrorKind
from schemas.openai.usage import usage_of
from tests.contract.material import hard_bodies

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
BODY: dict[str, Any] = {"model": "m", "messages": MESSAGES}
BOMB = b"[" * 100_000
STATE = OpaqueState(handle="h", model="m", engine="e", tokens=3, size=4, digest="d")


def chat_body(**more: Any) -> bytes:
    """A chat request as a client's JSON."""
    return msgspec.json.encode(BODY | more)


def chat_frame(**more: Any) -> bytes:
    """A chat request as a frame that somebody else wrote."""
    packed: bytes = msgpack.packb(BODY | more)
    return packed


def failure(read: Callable[[bytes], object], data: bytes) -> DecodeFailure:
    """The failure that reading these bytes is."""
    with pytest.raises(DecodeFailure) as caught:
        read(data)
    return caught.value


def plain(body: bytes) -> bytes:
    """A client's body as the plain frame the gateway makes of it."""
    view, _ = codec.read_chat_view(body)
    codec.plain_form(view)
    return codec.encode_frame(view)


def deferred(body: bytes) -> bytes:
    """A client's body as the deferred frame the gateway makes of it."""
    view, _ = codec.read_chat_view(body)
    codec.deferred_form(view)
    return codec.encode_frame(view)


# --- malformed ---


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"model":"m","messages":[{"role":"user","content":"hi"}]',
        chat_body() + b"x",
        b"null",
        b"[]",
        BOMB,
        b'{"model":"m","messages":' + BOMB,
        b'{"model":"m","unknown":' + BOMB,
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"metadata":' + b'{"a":' * 5000,
        b'{"model":"m","messages":[],"user":"\xff"}',
        b'{"model":"m","messages":[],"user":"\\ud800"}',
        b'{"model":"m","messages":[],"user":"\\udc00"}',
        b'{"model":"m","messages":[],"temperature":NaN}',
        b'\xef\xbb\xbf{"model":"m","messages":[]}',
        '{"model":"m","messages":[]}'.encode("utf-16"),
    ],
)
@pytest.mark.parametrize("read", [codec.read_chat_view, codec.read_chat_json])
def test_malformed_json_is_a_decode_failure(read: Callable[[bytes], object], data: bytes) -> None:
    """Whatever is wrong with a body, its reader says so in one way: a 400 that is a sentence."""
    error = failure(read, data)

    assert error.status == 400
    assert error.message.endswith(".")
    assert "$" not in error.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc0",
        b"\xc1",
        b"\x90",
        chat_frame()[:-1],
        chat_frame() + b"\xc0",
        chat_frame().replace(b"hello", b"\xff" * 5),
        b"\x82\xa5model\xa1m\xa8messages\x91\x82\xa4role\xa4user\xa7content\xa3\xed\xa0\x80",
        b"\x82\xa5model\xa1m\xa8messages" + b"\x91" * 100_000,
        b"\x83\xa5model\xa1m\xa8messages\x90\xa8metadata" + b"\x81\xa1a" * 100_000,
        b"\x82\xa5model\xa1m\xa7unknown" + b"\x91" * 100_000,
        b"\x82\xa5model\xa1m\xa8messages\xdd\xff\xff\xff\xff",
        b"\x82\xa5model\xdb\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        msgpack.packb({1: 2} | BODY),
        msgpack.packb({None: 2} | BODY),
        msgpack.packb({b"model": "m"}),
        chat_frame(metadata={"x": msgpack.ExtType(5, b"x")}),
        chat_frame(metadata={"x": {"y": [msgpack.ExtType(127, b"")]}}),
    ],
)
def test_malformed_frame_is_a_decode_failure(data: bytes) -> None:
    """Whatever is wrong with a frame, its reader says so in one way: a 400 that is a sentence."""
    error = failure(codec.read_chat_frame, data)

    assert error.status == 400
    assert error.message.endswith(".")
    assert "$" not in error.message


@pytest.mark.parametrize("size", range(len(chat_frame())))
def test_frame_cut_anywhere_is_a_decode_failure(size: int) -> None:
    """Every beginning of a frame is malformed."""
    assert failure(codec.read_chat_frame, chat_frame()[:size]).status == 400


@given(st.binary())
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    """No bytes make a reader raise something that is not a DecodeFailure."""
    for read in (codec.read_chat_frame, codec.read_chat_view, codec.read_completion_frame, codec.read_events):
        with suppress(DecodeFailure):
            read(data)


@given(st.binary(min_size=1), st.integers(0, 200))
def test_damaged_frame_never_raises_anything_else(damage: bytes, at: int) -> None:
    """A frame with some bytes overwritten is read, or is a DecodeFailure."""
    whole = chat_frame(stop=["a", "b"], logit_bias={"5": 1.5}, stream_options={"include_usage": True})
    with suppress(DecodeFailure):
        codec.read_chat_frame(whole[:at] + damage + whole[at + len(damage) :])


@pytest.mark.parametrize("name", hard_bodies())
def test_body_that_is_no_request_is_refused(name: str) -> None:
    """Not one of the bodies that are hard to parse is read as a request."""
    assert failure(codec.read_chat_view, hard_bodies()[name]).status == 400


# --- the field at fault ---


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"temperature": "1"}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 2**63 - 1}, "n"),
        ({"n": True}, "n"),
        ({"stop": ["a", None]}, "stop[1]"),
        ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"response_format": {"type": "poem"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"disaggregated_params": {"request_type": "x", "schedule_style": "context_first"}}, None),
    ],
)
def test_wrong_value_is_named(more: dict[str, Any], param: str | None) -> None:
    """The failure names the field, the same for JSON and for a frame."""
    param = param or "disaggregated_params.schedule_style"
    json_error, frame_error = (
        failure(codec.read_chat_json, chat_body(**more)),
        failure(codec.read_chat_frame, chat_frame(**more)),
    )

    assert json_error.param == frame_error.param == failure(codec.read_chat_view, chat_body(**more)).param == param
    assert f"'{param}'" in json_error.message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty", "length_penalty", "priority"]
)
def test_number_that_is_not_finite_is_refused(name: str, value: float) -> None:
    """Msgpack can carry NaN and infinities; no option takes them."""
    assert failure(codec.read_chat_frame, chat_frame(**{name: value})).param == name


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("aGVsbG8=", "messages"),
        ({}, "messages"),
        (None, "messages"),
        ([1], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
    ],
)
def test_wrong_messages_are_named(messages: object, param: str) -> None:
    """Wrong messages are found by the worker at the latest, in either form, and the failure says where."""
    body = chat_body(messages=messages)

    assert failure(codec.read_chat_json, body).param == param
    assert failure(codec.read_chat_frame, chat_frame(messages=messages)).param == param
    assert failure(lambda data: codec.read_chat_frame(plain(data)), body).param == param
    assert (failure(lambda data: codec.read_chat_frame(deferred(data)), body).param or "").startswith("messages")


@pytest.mark.parametrize("content", [b'"\\ud800"', b'"\\udc00"', b'"\xff"', b"1e999"])
@pytest.mark.parametrize("form", [plain, deferred])
def test_unreadable_message_names_messages(form: Callable[[bytes], bytes], content: bytes) -> None:
    """Text that is not Unicode is refused by name wherever the messages are parsed, if not before."""
    body = b'{"model":"m","messages":[{"role":"user","content":' + content + b"}]}"
    error = failure(lambda data: codec.read_chat_frame(form(data)), body)

    assert error.param is None or error.param.startswith("messages")


def test_integer_of_more_than_64_bits_is_refused_where_a_frame_cannot_hold_it() -> None:
    """Client JSON may hold integers that msgpack cannot: a DecodeFailure, naming the part where it is known."""
    nested = b'{"model":"m","messages":[{"role":"user","content":"a","x":18446744073709551616}]}'
    beside = b'{"model":"m","messages":[{"role":"user","content":"a"}],"metadata":{"x":18446744073709551616}}'

    assert failure(plain, nested).param == "messages"
    assert failure(plain, beside).param is None
    assert failure(codec.encode_frame, {"x": "\ud800"}).status == 400  # type: ignore[arg-type]  # any value is a frame


@pytest.mark.parametrize(
    "prompt", [[], {}, 5, [1, "a"], ["a", 1], [[1], "a"], [[[1]]], [None], [-1], [2**31], [[1, -1]], [1.5], [True]]
)
def test_wrong_prompt_names_prompt(prompt: object) -> None:
    """A prompt is text, token ids, or a list of either."""
    request = CompletionRequest(model="m", prompt=prompt)

    with pytest.raises(DecodeFailure) as caught:
        codec.prompt_of(request)
    assert (caught.value.param or "").startswith("prompt")


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]]), (None, [""]), ([""], [""])],
)
def test_prompt_is_read_as_a_list(prompt: object, prompts: object) -> None:
    """Each of the four shapes of a prompt becomes a list of prompts."""
    assert codec.prompt_of(CompletionRequest(model="m", prompt=prompt)) == prompts


# --- the forms ---

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(), JSON_VALUES)
def test_forms_decode_to_equal_requests(text: str, value: object) -> None:
    """The plain form, the deferred form and the client's own JSON are one request."""
    body = chat_body(
        messages=[{"role": "user", "content": text, "extension": value}],
        tools=[{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": value}}}}],
        metadata={"x": value},
    )

    assert codec.read_chat_frame(plain(body)) == codec.read_chat_frame(deferred(body)) == codec.read_chat_json(body)


@given(JSON_VALUES)
def test_unknown_nested_keys_survive_the_plain_form(value: object) -> None:
    """What a client wrote inside of messages and tools crosses as it is, known to us or not."""
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": value}], "extension": value}]
    tools = [{"type": "function", "function": {"name": "f", "extension": value}, "extension": value}]
    sent = msgspec.json.decode(chat_body(messages=messages, tools=tools))
    crossed = msgpack.unpackb(plain(msgspec.json.encode(sent)))

    assert (crossed["messages"], crossed["tools"]) == (sent["messages"], sent["tools"])


def test_deferred_form_carries_the_clients_bytes() -> None:
    """In the deferred form `messages` and `tools` are the client's own JSON, blanks included."""
    frame = deferred(b'{"model": "m", "tools" : [ ] ,"messages":  [ {"role":"user", "content":"a"} ] }')

    assert msgpack.unpackb(frame)["messages"] == b'[ {"role":"user", "content":"a"} ]'
    assert msgpack.unpackb(frame)["tools"] == b"[ ]"


@pytest.mark.parametrize("form", [plain, deferred])
def test_null_tools_stay_null(form: Callable[[bytes], bytes]) -> None:
    """Absent tools are absent and null ones null, in either form."""
    assert "tools" not in msgpack.unpackb(form(chat_body()))
    assert msgpack.unpackb(form(chat_body(tools=None)))["tools"] is None


@pytest.mark.parametrize("form", [plain, deferred])
@pytest.mark.parametrize("tools", [{}, "x", 1, False])
def test_wrong_tools_are_named(form: Callable[[bytes], bytes], tools: object) -> None:
    """Tools that are no list are refused by name."""
    assert failure(form, chat_body(tools=tools)).param == "tools"


@pytest.mark.parametrize(
    ("prompt", "crosses", "count"),
    [
        ("a", "a", 1),
        ([1, 2], [1, 2], 1),
        (["a"], "a", 1),
        ([""], "", 1),
        ([[1, 2]], [1, 2], 1),
        (["a", "b"], ["a", "b"], 2),
        ([[1, 2], [3]], [[1, 2], [3]], 2),
        ([], [], 1),
        ([[]], [], 1),
        ([[[1], [2]]], [[[1], [2]]], 1),
        (None, None, 1),
    ],
)
def test_list_of_one_prompt_is_unwrapped(prompt: object, crosses: object, count: int) -> None:
    """A completions frame holds its prompt as a value, and a list of one prompt as that prompt; nothing else is changed."""
    view, _ = codec.read_completion_view(msgspec.json.encode({"model": "m", "prompt": prompt}))

    assert codec.plain_form(view) == count
    assert msgpack.unpackb(codec.encode_frame(view)) == {"model": "m", "prompt": crosses}


def test_unknown_top_level_fields_are_reported() -> None:
    """A body with fields nobody knows is read, and their names are told."""
    view, unknown = codec.read_chat_view(chat_body(zebra=1, apple={"a": [1]}, temperature=0.5))

    assert (unknown, view.temperature) == (["zebra", "apple"], 0.5)
    assert codec.read_completion_view(b'{"model":"m","prompt":"a","zebra":1}')[1] == ["zebra"]
    assert codec.read_completion_view(b'{"model":"m","prompt":"a"}')[1] == []


@pytest.mark.parametrize("name", ["", "`", "a`b", "\n", "é", "` - at `$.model`"])
def test_unknown_field_may_have_any_name(name: str) -> None:
    """A field nobody knows is reported whatever a client calls it."""
    assert codec.read_chat_view(chat_body(**{name: 1}))[1] == [name]


def test_unknown_field_does_not_hide_a_wrong_one() -> None:
    """With unknown fields skipped, the known ones are checked as ever."""
    assert failure(codec.read_chat_view, chat_body(zebra=1, seed="x")).param == "seed"


# --- events ---


def batch(*pairs: tuple[int, object]) -> bytes:
    """An array of `[stream, event]` as a peer writes it."""
    return codec.encode_frame(list(pairs))


EVENTS: list[tuple[int, Event]] = [
    (1, Started(created=5, prompt_tokens=2)),
    (2, Delta(text="a", tokens=1, finish_reason="stop")),
    (1, Done(usage=usage_of(1, 2))),
    (2, Failed(kind=ErrorKind.UNAVAILABLE, message="gone")),
]


def test_events_are_read_as_written() -> None:
    """A batch comes back event for event."""
    assert codec.read_events(batch(*EVENTS)) == (EVENTS, 0)


def test_event_of_an_unknown_tag_is_skipped_and_counted() -> None:
    """A newer peer's event costs only itself."""
    newer = {"type": "applause", "volume": 11}

    assert codec.read_events(batch(EVENTS[0], (1, newer), EVENTS[1], (3, newer))) == (EVENTS[:2], 2)


def test_known_event_with_unknown_fields_is_read() -> None:
    """Events only grow: a field that is not known here is passed over."""
    assert codec.read_events(batch((1, {"type": "delta", "text": "a", "colour": "red"})))[0] == [(1, Delta(text="a"))]


def test_failure_of_an_unknown_kind_is_internal() -> None:
    """A kind of failure that only a newer peer knows is still a failure."""
    events, _ = codec.read_events(batch((1, {"type": "failed", "kind": "moonstruck", "message": "m"})))

    assert events == [(1, Failed(kind=ErrorKind.INTERNAL, message="m"))]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x90\x90",
        batch((1, {"type": "delta", "text": 5})),
        batch((1, {"text": "a"}))[:-1],
        batch((1, 5)),
        msgpack.packb([[1]]),
        msgpack.packb([["1", {"type": "done"}]]),
        msgpack.packb({"1": 2}),
        msgpack.packb([[1, {1: 2}]]),
        b"\x91" * 100_000,
    ],
)
def test_broken_batch_is_a_decode_failure(data: bytes) -> None:
    """An array that cannot be read is a broken peer's."""
    assert failure(codec.read_events, data).status == 400


# --- small parts ---


def test_opaque_state_is_read_as_written() -> None:
    """Our own opaque state survives its base64."""
    assert codec.decode_opaque(codec.encode_opaque(STATE)) == STATE


@pytest.mark.parametrize("text", ["", None, msgspec.UNSET, "%", "AAAA", codec.encode_opaque(STATE)[:-4], "wA==", "é"])
def test_foreign_opaque_state_is_a_decode_failure(text: str | None) -> None:
    """A state that we did not write is refused by name."""
    with pytest.raises(DecodeFailure) as caught:
        codec.decode_opaque(text)
    assert (caught.value.param or "").startswith("disaggregated_params.encoded_opaque_state")


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_token_ids_survive_base64(ids: list[int]) -> None:
    """Token ids come back from their base64 form, four bytes each, least significant first."""
    assert codec.decode_token_ids(codec.encode_token_ids(ids)) == ids
    assert codec.encode_token_ids([1]) == "AQAAAA=="


@pytest.mark.parametrize("text", ["%", "AAA=", "AQAAAAA=", "é"])
def test_wrong_base64_of_token_ids_is_named(text: str) -> None:
    """What is not base64, or not whole ids, is refused by name."""
    assert failure(codec.decode_token_ids, text).param == "prompt_token_ids_b64"  # type: ignore[arg-type]  # text, not bytes
