"""The hand-off crosses the gateway as bytes."""

import tracemalloc
from typing import Any

import msgspec
import pytest

from gateway.context_reply import ContextReply
from gateway.links.base import BadReply, Reply
from schemas.codec import encode_frame
from tests.unit.fake_link import json_reply, msgpack_reply

PARAMS = {
    "request_type": "context_only",
    "first_gen_tokens": [7],
    "ctx_request_id": 2**62 + 1,
    "disagg_request_id": 2**62 + 1,
    "encoded_opaque_state": "AAECAw==",
    "ctx_info_endpoint": None,
    "from_a_newer_worker": {"x": 1},
}


def reply_body(**changes: Any) -> dict[str, Any]:
    """A pending context reply."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "a"},
        "finish_reason": "length",
        "disaggregated_params": PARAMS,
    }
    body = {"id": "chatcmpl-1", "created": 1, "model": "m", "choices": [choice], "usage": {"prompt_tokens": 3}}
    return body | {"prompt_token_ids": [1, 2, 3]} | changes


@pytest.mark.parametrize("make", [json_reply, msgpack_reply])
def test_params_survive_whatever_the_form(make: Any) -> None:
    """63-bit ids, nulls and fields nobody here knows come out as they went in."""
    read = ContextReply(make(reply_body()))

    assert msgspec.msgpack.decode(encode_frame(read.params)) == PARAMS
    assert not read.finished


@pytest.mark.parametrize("make", [json_reply, msgpack_reply])
def test_token_ids_stand_in_a_frame_as_they_came(make: Any) -> None:
    """Prompt ids are msgpack bytes, ready to be copied."""
    read = ContextReply(make(reply_body()))

    assert msgspec.msgpack.decode(encode_frame({"prompt": read.token_ids})) == {"prompt": [1, 2, 3]}


def test_explicit_null_ids_count_as_absent() -> None:
    """A worker that answers in base64 sends a null beside it."""
    read = ContextReply(json_reply(reply_body(prompt_token_ids=None, prompt_token_ids_b64="AQAAAA==")))

    assert read.token_ids is msgspec.UNSET
    assert msgspec.msgpack.decode(encode_frame(read.token_ids_b64)) == "AQAAAA=="


def test_whole_answer_has_no_handoff_fields() -> None:
    """What a client sees of a finished context leg is an ordinary reply."""
    read = ContextReply(msgpack_reply(reply_body()))

    assert "prompt_token_ids" not in read.whole()
    assert "disaggregated_params" not in read.whole()["choices"][0]


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "weird"])
def test_any_other_finish_reason_is_the_whole_answer(reason: str) -> None:
    """Only `length` and `not_finished` mean that a generation leg is to follow."""
    body = reply_body()
    body["choices"][0]["finish_reason"] = reason

    assert ContextReply(json_reply(body)).finished


@pytest.mark.parametrize("missing", ["ctx_request_id", "disagg_request_id"])
def test_pending_reply_without_ids_is_refused(missing: str) -> None:
    """Without ids nobody could find the state."""
    body = reply_body()
    body["choices"][0]["disaggregated_params"] = PARAMS | {missing: None}

    with pytest.raises(BadReply):
        ContextReply(json_reply(body))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"choices": []}', b'{"choices": 5}', b"\xff"])
def test_nonsense_is_a_bad_reply(body: bytes) -> None:
    """Whatever a worker sends, the failure has a name."""
    for kind in ("application/json", "application/msgpack"):
        with pytest.raises(BadReply):
            ContextReply(Reply(200, {"content-type": kind}, body))


@pytest.mark.parametrize("field", ["prompt_token_ids", "prompt_token_ids_b64"])
def test_relaying_a_hundred_thousand_ids_makes_no_object_per_id(field: str) -> None:
    """The number of allocations does not depend on the length of the prompt."""
    ids = list(range(100_000))
    value = ids if field == "prompt_token_ids" else "A" * 533_336
    reply = msgpack_reply(reply_body(prompt_token_ids=None) | {field: value})
    tracemalloc.start()
    try:
        read = ContextReply(reply)
        frame = encode_frame({"params": read.params, field: getattr(read, field.removeprefix("prompt_"))})
        blocks = sum(stat.count for stat in tracemalloc.take_snapshot().statistics("filename"))
    finally:
        tracemalloc.stop()

    assert len(frame) > 300_000
    assert blocks < 200
