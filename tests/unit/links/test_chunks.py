"""Telling a whole chunk at a glance, held against the parser that knows them all."""

from contextlib import suppress

import pytest
from httptools import HttpParserError, HttpResponseParser
from hypothesis import given
from hypothesis import strategies as st

from gateway.links.chunks import LARGEST, whole_chunk

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"data: {}\n\n"


class Seen:
    """What the parser says of some bytes."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.ended = 0

    def on_chunk_header(self) -> None:
        self.chunks.append(b"")

    def on_body(self, body: bytes) -> None:
        self.chunks[-1] += body

    def on_chunk_complete(self) -> None:
        self.ended += 1


def chunk(body: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(body), body)


@pytest.mark.parametrize("size", [4, 15, 16, 255, 256, 4000, LARGEST - 7])
def test_a_whole_chunk_is_known(size: int) -> None:
    """Whatever its length, and in small and in capital letters."""
    body = b"x" * (size - 2) + b"\n\n"

    assert whole_chunk(chunk(body)) == body
    assert whole_chunk(b"%X\r\n%b\r\n" % (len(body), body)) == body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n",
        b"\n\n\r\n",
        b"0\r\n\r\n",
        b"-\n\n\r\n",
        chunk(EVENT)[:-1],
        chunk(EVENT)[1:],
        chunk(EVENT) * 2,
        chunk(b"data: {}"),
        b"0" + chunk(EVENT),
        b"a;x=1\r\n" + EVENT + b"\r\n",
        chunk(b"x" * LARGEST + b"\n\n"),
    ],
)
def test_anything_else_is_left_to_the_parser(data: bytes) -> None:
    """Parts of a chunk, several, the last one, extensions, chunks without an event's end, and large ones."""
    assert whole_chunk(data) == b""


@given(st.one_of(st.binary(max_size=40), st.binary(max_size=300).map(lambda body: chunk(body + b"\n\n"))))
def test_what_is_known_is_what_the_parser_says(data: bytes) -> None:
    """Bytes taken for a chunk are one chunk for the parser too, with the same body, and nothing of it is missing."""
    body = whole_chunk(data)
    seen = Seen()
    parser = HttpResponseParser(seen)
    parser.feed_data(HEAD)
    with suppress(HttpParserError):
        parser.feed_data(data)

    assert not body or (seen.chunks, seen.ended) == ([body], 1)
