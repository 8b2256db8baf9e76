"""The SSE reader: whole events out of any pieces, and the terminal found wherever it stands."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.links.base import BadReply
from gateway.links.sse import SseReader

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]} \n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
METRICS = b'event: trtllm.perf_metrics\ndata: {"Server-Timing":"x;dur=1"}\n\n'
STOCK_ERROR = b'data: {"error":{"message":"CUDA out of memory.","type":"server_error","code":null,"param":null}}\n\n'
LIFTED_ERROR = b'data: {"error":{"message":"CUDA out of memory.","type":"server_error","param":null,"code":null}}\n\n'


def read_all(pieces: list[bytes]) -> tuple[bytes, bool]:
    """Everything a fresh reader lets through, and whether it saw the terminal."""
    reader = SseReader()
    return b"".join(reader.feed(piece) for piece in pieces), reader.ended


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """The stream in pieces, cut at these places."""
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


class TestBoundaries:
    @pytest.mark.parametrize("blank", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n"])
    def test_each_blank_line_ends_an_event(self, blank: bytes) -> None:
        """LF LF, CR LF CR LF, CR CR and LF CR LF all end an event, and what follows is held."""
        assert SseReader().feed(b"data: 1" + blank + b"data: 2") == b"data: 1" + blank

    def test_tail_is_held_until_complete(self) -> None:
        """An incomplete event is let through together with its end."""
        reader = SseReader()

        assert reader.feed(b"data: 1\n\ndata: 2\n") == b"data: 1\n\n"
        assert reader.feed(b"\n") == b"data: 2\n\n"

    def test_two_events_in_one_piece_pass_together(self) -> None:
        """Events that arrive together leave together, byte for byte."""
        assert SseReader().feed(ROLE + TOKEN) == ROLE + TOKEN

    def test_comments_pass(self) -> None:
        """A comment is an event of no content and is relayed."""
        assert SseReader().feed(b": ping\n\n") == b": ping\n\n"

    def test_empty_lines_between_events_belong_to_the_event_before(self) -> None:
        """Superfluous empty lines pass whether they come with the event or after it."""
        assert read_all([b"data: 1\n\n\n\r\n"]) == read_all([b"data: 1\n\n", b"\n", b"\r\n"])

    def test_event_beyond_the_limit_is_a_bad_reply(self) -> None:
        """An event that grows without an end is refused at the limit."""
        reader = SseReader(max_event_bytes=100)
        reader.feed(b"data: " + b"x" * 94)

        with pytest.raises(BadReply):
            reader.feed(b"x")

    def test_many_events_beyond_the_limit_pass(self) -> None:
        """The limit is one event's, not one piece's."""
        assert SseReader(max_event_bytes=100).feed(TOKEN * 10 + b"data:") == TOKEN * 10


class TestTerminal:
    @pytest.mark.parametrize(
        "done", [DONE, b"data:[DONE]\n\n", b"data: [DONE] \n\n", b"event: end\r\ndata: [DONE]\r\n\r\n"]
    )
    def test_done_ends_the_stream(self, done: bytes) -> None:
        """Every spelling of `data: [DONE]` is the terminal and is itself relayed."""
        assert read_all([TOKEN + done]) == (TOKEN + done, True)

    @pytest.mark.parametrize("extra", [METRICS, DONE, METRICS + DONE, b"\n", b"data: {", STOCK_ERROR])
    def test_what_follows_done_is_cut(self, extra: bytes) -> None:
        """Metrics, a second `[DONE]` and everything else after the terminal are dropped, in the same piece or a later one."""
        assert read_all([TOKEN + DONE + extra]) == (TOKEN + DONE, True)
        assert read_all([TOKEN + DONE, extra]) == (TOKEN + DONE, True)

    def test_done_within_text_is_not_the_terminal(self) -> None:
        """A model that writes `[DONE]` does not end its stream."""
        text = b'data: {"choices":[{"delta":{"content":"data: [DONE]"}}]}\n\n'

        assert read_all([text, TOKEN]) == (text + TOKEN, False)

    def test_no_terminal_is_none(self) -> None:
        """A finish reason alone does not end a stream."""
        finish = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'

        assert read_all([TOKEN, finish]) == (TOKEN + finish, False)


class TestErrorRecord:
    @pytest.mark.parametrize("after", [b"", DONE, TOKEN + DONE, b"data: {"])
    def test_error_record_is_the_terminal(self, after: bytes) -> None:
        """An error record in the middle of a piece is rewritten, and neither its `[DONE]` nor anything else follows."""
        assert read_all([TOKEN + STOCK_ERROR + after]) == (TOKEN + LIFTED_ERROR, True)

    @pytest.mark.parametrize(
        "record",
        [
            b'data: {"error":"boom"}\n\n',
            b'data: {"object":"error","message":"boom","type":"BadRequestError","param":null,"code":400}\n\n',
            b'event: error\ndata: {"error": {"message": "boom", "code": 500}}\n\n',
            b'data: {"error":\ndata: {"message":"boom"}}\n\n',
        ],
    )
    def test_every_shape_is_lifted(self, record: bytes) -> None:
        """Each shape a worker has for an error becomes the one OpenAI object."""
        out, ended = read_all([record])

        error = json.loads(out.removeprefix(b"data: "))["error"]
        assert ended
        assert (error["message"], sorted(error)) == ("boom", ["code", "message", "param", "type"])

    @pytest.mark.parametrize(
        "chunk",
        [
            b'data: {"choices":[{"delta":{"content":"error"}}]}\n\n',
            b'data: {"choices":[{"delta":{"content":"{\\"error\\": {}}"}}]}\n\n',
            b'data: {"choices":[{"delta":{},"finish_reason":"error"}]}\n\n',
            b'data: {"choices":[{"delta":{"error":{"message":"nested"}}}]}\n\n',
            b'data: {"error":null,"choices":[]}\n\n',
            b'data: {"error": {}, "choices":[]}\n\n',
            b'data: {"error" is not JSON\n\n',
            b'data: ["error"]\n\n',
            b': "error"\n\n',
        ],
    )
    def test_the_word_alone_is_no_error(self, chunk: bytes) -> None:
        """Only a top-level `error` with something in it is an error record; everything else passes as it came."""
        assert read_all([chunk + TOKEN]) == (chunk + TOKEN, False)

    def test_nothing_internal_passes(self) -> None:
        """A host or a path in an error record does not reach the client."""
        out, _ = read_all([b'data: {"error":{"message":"No route to worker-3:8001. See /var/log/trt/x.log"}}\n\n'])

        assert b"worker-3" not in out
        assert b"/var" not in out


STREAMS = [
    ROLE + TOKEN + TOKEN + DONE + METRICS + DONE,
    ROLE + TOKEN + STOCK_ERROR + DONE,
    (ROLE + TOKEN + DONE).replace(b"\n", b"\r\n"),
    (ROLE + TOKEN + DONE).replace(b"\n", b"\r"),
    b": ping\n\n" + TOKEN + b"\n\n" + DONE,
    ROLE + TOKEN + b"data: {",
    'data: {"c":"東京 🚀"}\n\n'.encode() + DONE,
]


class TestChunking:
    @pytest.mark.parametrize("stream", STREAMS)
    def test_every_cut_gives_the_same(self, stream: bytes) -> None:
        """A stream cut in two at any offset, or into single bytes, reads as it does in one piece."""
        whole = read_all([stream])

        assert all(read_all([stream[:at], stream[at:]]) == whole for at in range(len(stream) + 1))
        assert read_all([stream[at : at + 1] for at in range(len(stream))]) == whole

    @given(stream=st.sampled_from(STREAMS), places=st.lists(st.integers(min_value=0, max_value=2000), max_size=20))
    def test_any_chunking_gives_the_same(self, stream: bytes, places: list[int]) -> None:
        """No way to cut a stream of events changes what passes."""
        assert read_all(cut(stream, places)) == read_all([stream])

    @given(
        stream=st.lists(
            st.sampled_from([b"\r", b"\n", b"\r\n", b"data: x", b":", b"data: [DONE]", b'{"error":1}'])
        ).map(b"".join),
        places=st.lists(st.integers(min_value=0, max_value=2000), max_size=20),
    )
    def test_any_chunking_of_any_lines_gives_the_same(self, stream: bytes, places: list[int]) -> None:
        """The same holds for whatever mixture of line ends and lines a worker may send."""
        assert read_all(cut(stream, places)) == read_all([stream])

    @given(stream=st.sampled_from(STREAMS), length=st.integers(min_value=0, max_value=500))
    def test_a_truncated_stream_gives_whole_events(self, stream: bytes, length: int) -> None:
        """What passes of a stream that was cut off ends with a blank line, and its data parses."""
        out, _ = read_all([stream[:length]])

        assert out == b"" or re.search(rb"(\r|\n)\r?\n$|\r\r$", out)
        payloads = [line[5:].strip() for line in out.splitlines() if line.startswith(b"data:")]
        assert all(payload == b"[DONE]" or json.loads(payload) for payload in payloads)
