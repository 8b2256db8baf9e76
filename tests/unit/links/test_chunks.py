"""Telling whole chunks at a glance, held against the parser that knows them all."""

from contextlib import suppress

import pytest
from httptools import HttpParserError, HttpResponseParser
from hypothesis import given
from hypothesis import strategies as st

from gateway.links.chunks import LARGEST, ends_chunk, whole_chunks

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"data: {}\n\n"


class Seen:
    """What the parser says of some bytes."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.pieces: list[bytes] = []
        self.ended = 0

    def on_chunk_header(self) -> None:
        self.chunks.append(b"")

    def on_body(self, body: bytes) -> None:
        self.chunks[-1] += body
        self.pieces.append(body)

    def on_chunk_complete(self) -> None:
        self.ended += 1


def chunk(body: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(body), body)


@pytest.mark.parametrize("size", [4, 15, 16, 255, 256, 4000, LARGEST - 7])
def test_a_whole_chunk_is_known(size: int) -> None:
    """Whatever its length, and in small and in capital letters."""
    body = b"x" * (size - 2) + b"\n\n"

    assert whole_chunks(chunk(body)) == body
    assert whole_chunks(b"%X\r\n%b\r\n" % (len(body), body)) == body


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
        chunk(EVENT) + b"0\r\n\r\n" + chunk(EVENT),
        chunk(EVENT) + b"0\r\n\r\n",
        chunk(EVENT) + chunk(EVENT)[:-1],
        chunk(EVENT) + chunk(b"data: \r\n\n\n"),
        chunk(b"data: {}"),
        b"0" + chunk(EVENT),
        b"a;x=1\r\n" + EVENT + b"\r\n",
        chunk(b"x" * LARGEST + b"\n\n"),
    ],
)
def test_anything_else_is_left_to_the_parser(data: bytes) -> None:
    """Parts of chunks, the last one, extensions, chunks without an event's end, and large ones."""
    assert whole_chunks(data) == b""


@pytest.mark.parametrize("count", [2, 3, 200])
def test_several_whole_chunks_are_known(count: int) -> None:
    """As long as each ends where it says."""
    bodies = [b"data: %d\n\n" % number for number in range(count)]

    assert whole_chunks(b"".join(map(chunk, bodies))) == b"".join(bodies)


@given(
    st.lists(
        st.one_of(
            st.sampled_from([b"\r\n", b"0\r\n\r\n", b"5\r\n", b"\n\n\r\n"]),
            st.binary(max_size=20),
            st.binary(max_size=300).map(lambda body: chunk(body + b"\n\n")),
        ),
        max_size=4,
    ).map(b"".join)
)
def test_what_is_known_is_what_the_parser_says(data: bytes) -> None:
    """Bytes taken for chunks are chunks for the parser too, with the same bodies, and nothing of them is missing."""
    body = whole_chunks(data)
    seen = Seen()
    parser = HttpResponseParser(seen)
    parser.feed_data(HEAD)
    with suppress(HttpParserError):
        parser.feed_data(data)

    assert not body or (b"".join(seen.chunks), seen.ended) == (body, len(seen.chunks))


@given(
    st.lists(st.binary(max_size=12).map(lambda body: body + b"\n\n"), max_size=3),
    st.binary(max_size=6),
    st.integers(0, 8),
)
def test_the_end_of_a_chunk_is_what_the_parser_says(bodies: list[bytes], more: bytes, cut: int) -> None:
    """Where these bytes end with a chunk, the parser has found its end, and nothing of another one."""
    data = b"".join(map(chunk, bodies)) + (chunk(more + b"\n\n\r\n") if more else b"")
    data = data[: len(data) - cut]
    seen = Seen()
    parser = HttpResponseParser(seen)
    parser.feed_data(HEAD)
    parser.feed_data(data)

    assert not ends_chunk(data, seen.pieces) or seen.ended == len(seen.chunks)
