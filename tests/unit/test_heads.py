"""Recognising a head that was seen before, held against the parser."""

from contextlib import suppress

import pytest
from httptools import HttpParserError, HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st

from gateway.heads import LARGEST, MOST_LESSONS, RepeatedHead

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\nAccept: */*\r\n\r\n"


def message(body: bytes, head: bytes = HEAD) -> bytes:
    """A request."""
    return head % len(body) + body


def taught(head: bytes = HEAD) -> RepeatedHead[str]:
    """What has seen this head."""
    repeated: RepeatedHead[str] = RepeatedHead()
    repeated.learn(message(b"hello", head), "understood")
    return repeated


class Parsed:
    """The bodies of the messages that the parser finds."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.whole = 0

    def on_message_begin(self) -> None:
        self.bodies.append(b"")

    def on_body(self, body: bytes) -> None:
        self.bodies[-1] += body

    def on_message_complete(self) -> None:
        self.whole += 1


@pytest.mark.parametrize("body", [b"", b"x", b"hello", b"x" * 100_000, b"\r\n\r\n" + HEAD])
def test_the_same_head_with_another_length_is_known(body: bytes) -> None:
    """Only the digits of its Content-Length may differ."""
    repeated = taught()

    assert repeated.body_of(message(body)) == body
    assert repeated.understood == "understood"


@pytest.mark.parametrize(
    "other",
    [
        message(b"hello")[:-1],
        message(b"hello") + b"x",
        message(b"hello") * 2,
        message(b"hello").replace(b"Accept", b"accept"),
        message(b"hello").replace(b"Length: 5", b"Length: +5"),
        message(b"hello").replace(b"Length: 5", b"Length: 5 "),
        message(b"hello").replace(b"Length: 5", b"Length: "),
        message(b"hello").replace(b"Length: 5", b"Length: 00000000005"),
        message(b"hello").replace(b"Length: 5", b"Length: 5\r\nContent-Length: 6"),
        message(b"hello").replace(b"Accept: */*", b"Transfer-Encoding: chunked"),
        b"",
    ],
)
def test_anything_else_is_left_to_the_parser(other: bytes) -> None:
    """Parts, more than one message, other words, and lengths that are none."""
    assert taught().body_of(other) is None


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: test\r\nX-Number: %d\r\n\r\n",
        b"POST / HTTP/1.1\r\nX: " + b"x" * LARGEST + b"\r\nContent-Length: %d\r\n\r\n",
    ],
)
def test_a_head_without_a_length_and_a_long_one_are_not_kept(head: bytes) -> None:
    """There is nothing to know such a message by, or it costs too much."""
    assert taught(head).body_of(message(b"hello", head)) is None


def test_a_connection_of_changing_heads_is_given_up_on() -> None:
    """After some heads in a row that did not come again nothing is learnt any more; one that comes again begins the count anew."""
    repeated: RepeatedHead[int] = RepeatedHead()
    heads = [HEAD.replace(b"Accept", b"Accept-%d" % number) for number in range(MOST_LESSONS + 1)]
    heads = [head.replace(b"Length: %d", b"Length: 5") for head in heads]
    for number, head in enumerate(heads):
        repeated.learn(head + b"hello", number)

    assert repeated.body_of(heads[-2] + b"hello") == b"hello"
    assert repeated.body_of(heads[-1] + b"hello") is None


@given(st.binary(max_size=30), st.integers(0, 80), st.binary(max_size=3))
def test_what_is_known_is_what_the_parser_says(body: bytes, at: int, noise: bytes) -> None:
    """A message with any bytes put in anywhere is taken only if the parser finds one whole message with the same body."""
    data = message(body)
    data = data[:at] + noise + data[at:]
    known = taught().body_of(data)
    parsed = Parsed()
    with suppress(HttpParserError):
        HttpRequestParser(parsed).feed_data(data)

    assert known is None or (parsed.bodies, parsed.whole) == ([known], 1)
