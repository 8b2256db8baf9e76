"""The frames of a request: one msgpack value each, and large parts of it are not copied."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gateway.frames import Frames
from gateway.spliced_frame import SPLICED_BYTES, RequestFrame, SplicedFrame
from schemas.codec import read_chat_view, read_completion_view
from schemas.dialect import PACKRELAY, STOCK, Dialect

LARGE = "grüße " * SPLICED_BYTES
MESSAGES = [{"role": "user", "content": LARGE}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": LARGE}}]
SMALL = [{"role": "user", "content": "hi"}]
SMALL_MOST = 1024
"""Bytes of a frame that are not of its large parts, and may be copied."""


def frames(**fields: Any) -> Frames:
    """Of a chat if there are messages, else of a completion. Any: JSON."""
    body = msgspec.json.encode({"model": "m"} | fields)
    return Frames((read_chat_view if "messages" in fields else read_completion_view)(body)[0])


def read(frame: bytes) -> dict[str, Any]:
    """A frame's fields, deferred ones as the JSON they are."""
    fields: dict[str, Any] = msgspec.msgpack.decode(frame)
    return {name: msgspec.json.decode(value) if isinstance(value, bytes) else value for name, value in fields.items()}


def copied(frame: RequestFrame) -> int:
    """How many bytes of a frame are not somebody else's."""
    assert isinstance(frame, SplicedFrame)
    return sum(len(piece) for piece in frame.pieces if isinstance(piece, bytes))


@pytest.mark.parametrize("dialect", [STOCK, PACKRELAY], ids=["plain", "deferred"])
@pytest.mark.parametrize(
    "fields",
    [
        {"messages": MESSAGES},
        {"messages": MESSAGES, "tools": TOOLS},
        {"messages": SMALL, "tools": TOOLS},
        {"messages": MESSAGES, "tools": None, "temperature": 0.5},
        {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "auto", "seed": 1, "stop": ["a"], "n": 2, "stream": True}
        | {"logprobs": True, "top_logprobs": 1, "temperature": 1.0, "top_p": 0.5, "top_k": 5, "min_p": 0.5}
        | {"frequency_penalty": 0.1, "presence_penalty": 0.1, "repetition_penalty": 1.5, "ignore_eos": True},
        {"prompt": LARGE, "echo": False},
        {"prompt": [1000] * SPLICED_BYTES},
    ],
    ids=["messages", "messages and tools", "tools", "no tools", "more than fifteen fields", "prompt", "prompt of ids"],
)
def test_large_parts_are_not_copied(dialect: Dialect, fields: dict[str, Any]) -> None:
    """The frame says what the client said, and of its bytes only the small ones are new."""
    frame = frames(**fields).frame(dialect)

    said = read(bytes(frame))
    assert {name: said[name] for name in fields} == fields
    assert len(frame) == len(bytes(frame))
    assert copied(frame) < SMALL_MOST


@pytest.mark.parametrize("name", ["prompt_token_ids", "prompt_token_ids_b64"])
def test_large_hand_off_is_not_copied(name: str) -> None:
    """The ids of a context worker go on as they came, behind a small request as well."""
    ids = msgspec.msgpack.encode("A" * SPLICED_BYTES)
    frame = frames(messages=SMALL).frame(PACKRELAY, large=True, **{name: Raw(ids)})

    assert read(bytes(frame))[name] == "A" * SPLICED_BYTES
    assert copied(frame) < SMALL_MOST


def test_small_frame_is_one_piece() -> None:
    """A copy of a small request costs less than two writes."""
    assert isinstance(frames(messages=SMALL, tools=[]).frame(PACKRELAY), bytes)


def test_history_that_is_left_out_is_not_there() -> None:
    """Of a large chat whose prompt travels as ids only the last message is left, and that is small."""
    asked = frames(messages=[*MESSAGES, *SMALL])
    frame = asked.frame(PACKRELAY, messages=asked.last_message(PACKRELAY))

    assert isinstance(frame, bytes)
    assert read(frame)["messages"] == SMALL


def test_last_message_may_be_the_large_one() -> None:
    """It is left out of nothing, and not copied once more."""
    asked = frames(messages=[*SMALL, *MESSAGES])
    frame = asked.frame(PACKRELAY, messages=asked.last_message(PACKRELAY))

    assert read(bytes(frame))["messages"] == MESSAGES
    assert isinstance(frame, SplicedFrame)
    assert len(frame.pieces[0]) < SMALL_MOST
