"""Bytes to feed an entry point with: golden frames and earlier finds, damaged; and whole bodies with the wrong things in them."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]  # the package carries no types
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from msgspec import json

from schemas.events import Delta, Done
from schemas.openai.chat import ChatCompletionRequest
from schemas.openai.completions import CompletionRequest
from tests.unit.struct_values import ANYTHING
from tools.schemas.artefacts import golden_frames

CORPUS: Final = Path(__file__).with_name("corpus")

_JSON_PIECES: Final = (
    b"[" * 3000,
    b'{"a":' * 3000,
    b"\\ud800",
    b"\\u0000",
    b"\xff",
    b"\xed\xa0\x80",
    b"1e999",
    b"-0",
    b"9" * 400,
    b"18446744073709551616",
    b"null",
    b'{"model":"m","messages":',
    b'{"model":"m","prompt":[',
    b"\xef\xbb\xbf",
)
_MSGPACK_PIECES: Final = (
    b"\xc1",
    b"\xc0",
    b"\x91" * 3000,
    b"\x81\xa1a" * 3000,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xc7\x01\x05x",
    b"\xd6\xff\x00\x00\x00\x00",
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xa2\xed\xa0",
    b"\xc4\x02[]",
    b"\x81\xc0\xc0",
)
_PIECES: Final = {"http_body": _JSON_PIECES, "tagged_body": _MSGPACK_PIECES, "grpc_payload": _MSGPACK_PIECES}
_LARGEST_SEED: Final = 5000


def corpus(entry_point: str) -> list[Path]:
    """What was found for an entry point, and what others found for theirs."""
    return sorted((CORPUS / entry_point).glob("*.bin"))


def inputs(entry_point: str) -> SearchStrategy[bytes]:
    """Bytes for an entry point: damaged ones, wrong ones, and noise."""
    pack: Callable[[Any], bytes] = json.encode if entry_point == "http_body" else _packed
    return _damaged(entry_point) | _bodies().map(pack) | st.binary(max_size=64)


@lru_cache
def _seeds(entry_point: str) -> list[bytes]:
    kind = ".json" if entry_point == "http_body" else ".msgpack"
    golden = [data for path, data in golden_frames().items() if path.endswith(kind) and len(data) < _LARGEST_SEED]
    return [*golden, *(path.read_bytes() for path in corpus(entry_point))]


@st.composite
def _damaged(draw: DrawFn, entry_point: str) -> bytes:
    seeds = st.sampled_from(_seeds(entry_point))
    pieces = st.sampled_from(_PIECES[entry_point]) | st.binary(max_size=3)
    data = draw(seeds)
    for _ in range(draw(st.integers(1, 3))):
        start, end = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        match draw(st.sampled_from(["cut", "replace", "insert", "repeat", "splice"])):
            case "cut":
                data = data[:start]
            case "replace":
                piece = draw(pieces)
                data = data[:start] + piece + data[start + len(piece) :]
            case "insert":
                data = data[:start] + draw(pieces) + data[start:]
            case "repeat":
                data = data[:end] + data[start:]
            case _:
                data = data[:start] + draw(seeds)[end:]
    return data


def _bodies() -> SearchStrategy[Any]:
    """Requests, events and replies with known names and anything behind them."""
    names = {
        name for type_ in (ChatCompletionRequest, CompletionRequest, Delta, Done) for name in type_.__struct_fields__
    }
    fields = st.dictionaries(st.sampled_from(sorted(names)), ANYTHING, max_size=4)
    message = st.fixed_dictionaries(
        {"role": st.just("user") | ANYTHING},
        optional=dict.fromkeys(("content", "tool_calls", "function_call", "unknown"), ANYTHING),
    )
    chat = st.builds(lambda message, more: {"model": "m", "messages": [message], **more}, message, fields)
    completion = st.builds(lambda prompt, more: {"model": "m", "prompt": prompt, **more}, ANYTHING, fields)
    tags = st.sampled_from(["started", "delta", "done", "failed", "x"]) | ANYTHING
    event = st.builds(lambda tag, more: {"type": tag, **more}, tags, fields)
    events = st.lists(st.tuples(st.integers(0, 3) | ANYTHING, event | ANYTHING), max_size=3)
    return chat | completion | events | event


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed
