"""Telling whole chunks of a stream from anything else, at a glance (RFC 9112, 7.1).

Workers write a chunk for each event, and a read brings one of them, or many. For so many bytes there is only one size that a single
chunk can have; and as events hold no CR LF, many can be split at it, and each held against its size. Whatever is not found to be
whole chunks in this way goes to the parser, which tells the bodies one by one.
"""

from collections.abc import Sequence
from typing import Final

LARGEST: Final = 4096
"""Longer chunks are left to the parser: what it costs does not matter beside them."""
LAST_CHUNK: Final = b"0\r\n\r\n"
"""The end of a body, without trailers."""

_END_OF_EVENT: Final = b"\n\n"
_END: Final = b"\n\n\r\n"
"""The end of a chunk that ends with an event. No line of a chunk's size ends so."""


def _sizes() -> list[tuple[bytes, ...]]:
    """For each length of a chunk with its frame the line it begins with: the size of its body, in small and in capital letters."""
    lines: list[tuple[bytes, ...]] = [()] * (LARGEST + 1)
    for size in range(2, LARGEST):
        line = b"%x\r\n" % size
        whole = len(line) + size + 2
        if whole <= LARGEST:
            lines[whole] = (line, line.upper())
    return lines


_LINES: Final = _sizes()
_NUMBERS: Final = [b"%x" % size for size in range(LARGEST)]


def whole_chunks(data: bytes) -> bytes:
    """The bodies of `data` if that is nothing but whole chunks, the last of which ends with an event; `b""` otherwise."""
    if not data.endswith(_END):
        return b""
    length = len(data)
    if length <= LARGEST and data.startswith(lines := _LINES[length]):
        return data[len(lines[0]) : -2]
    return _several(data)


def _several(data: bytes) -> bytes:
    parts = data.split(b"\r\n")
    bodies = parts[1::2]
    try:
        sizes = [_NUMBERS[len(body)] for body in bodies]
    except IndexError:
        return b""
    # A chunk of no bytes would be the last one.
    return b"".join(bodies) if sizes == parts[:-1:2] and b"" not in bodies else b""


def ends_chunk(data: bytes, bodies: Sequence[bytes]) -> bool:
    """Whether `data` ends with a chunk that ends with an event; `bodies` is what the parser found in it, or found last.

    That the line end behind the event is none of the body's tells it from one within a longer chunk.
    """
    return data.endswith(_END) and bool(bodies) and bodies[-1].endswith(_END_OF_EVENT)
