"""A frame whose large parts are not copied into it.

They are the client's own bytes (deferred form), what was made of those once for all legs (plain form), or a context worker's ids.
"""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, structs

from gateway.outbox import Piece
from schemas.codec import encode_frame

LARGE_FIELDS: Final = ("messages", "tools", "prompt", "prompt_token_ids", "prompt_token_ids_b64")
"""The fields of a request that may be large."""

SPLICED_BYTES: Final = 128 << 10
"""A part above this size is not copied. Measured: below it a copy costs less than what follows here, 4 us; of 1 MB it is 40."""

_BIN_32, _MAP_16 = b"\xc6", b"\xde"


class SplicedFrame:
    """A frame in pieces, in their order."""

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces
        self._size = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


RequestFrame = bytes | SplicedFrame
"""One msgpack value on its way to a worker; `bytes` of either is the whole of it."""


def spliced_frame(view: Any) -> RequestFrame:
    """A request as one msgpack value, its large fields last and not copied: they are not to change. Raises as `encode_frame`."""
    large: dict[str, Any] = {name: value for name in LARGE_FIELDS if _is_large(value := getattr(view, name, UNSET))}
    if not large:
        return encode_frame(view)
    small = encode_frame(structs.replace(view, **dict.fromkeys(large, UNSET)))
    pieces: list[Piece] = []
    before = _map_of_more(small, len(large))
    for name, value in large.items():
        data = memoryview(value)
        header = b"" if isinstance(value, Raw) else _BIN_32 + len(data).to_bytes(4, "big")
        pieces += (before + msgspec.msgpack.encode(name) + header, data)
        before = b""
    return SplicedFrame(pieces)


def _is_large(value: Any) -> bool:
    return isinstance(value, Raw | memoryview | bytes) and len(memoryview(value)) > SPLICED_BYTES


def _map_of_more(frame: bytes, more: int) -> bytes:
    """A msgpack map as the beginning of one that has so many fields more."""
    count, begin = (int.from_bytes(frame[1:3], "big"), 3) if frame[:1] == _MAP_16 else (frame[0] & 0x0F, 1)
    return _MAP_16 + (count + more).to_bytes(2, "big") + frame[begin:]
