"""Telling one whole chunk of a stream from anything else, at a glance (RFC 9112, 7.1).

Workers write a chunk for each event, and most reads bring exactly one. For so many bytes there is only one size that such a chunk
can have: whether it begins with that size and ends with a blank line is all there is to check.
"""

from typing import Final

LARGEST: Final = 4096
"""Longer chunks are left to the parser: what it costs does not matter beside them."""
CHUNK_OF_EVENTS_END: Final = b"\n\n\r\n"
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


_SIZES: Final = _sizes()


def whole_chunk(data: bytes) -> bytes:
    """The body of `data` if that is exactly one chunk that ends with a blank line, and of ordinary length; `b""` otherwise."""
    length = len(data)
    if length > LARGEST or not data.endswith(CHUNK_OF_EVENTS_END):
        return b""
    lines = _SIZES[length]
    return data[len(lines[0]) : -2] if data.startswith(lines) else b""
