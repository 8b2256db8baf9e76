"""Events to chunks and to whole replies: the same words, whichever way they go."""

import json
import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from schemas import codec
from schemas.disagg import DisaggregatedParams
from schemas.events import Alternative, Delta, Done, Event, Failed, Handoff, Started, TokenLogprob
from schemas.openai.chat import FunctionCallDelta, ToolCallDelta
from schemas.openai.completions import CompletionRequest
from schemas.openai.errors import ErrorKind, ServingError
from schemas.openai.replay import events_of
from schemas.openai.stream import (
    DONE,
    ChatChunks,
    CompletionChunks,
    Fold,
    StreamHead,
    completion_logprobs,
    finite,
    stream_head,
    token_text,
)
from schemas.openai.usage import usage_of
from tests.contract.material import validator

Chunks = ChatChunks | CompletionChunks

HEAD = StreamHead(id="chatcmpl-1", model="m")
WITH_USAGE = StreamHead(id="chatcmpl-1", model="m", include_usage=True)
CONTINUOUS = StreamHead(id="chatcmpl-1", model="m", include_usage=True, continuous_usage=True)
STARTED = Started(created=7, prompt_tokens=4, cached_tokens=2)
USAGE = usage_of(4, 3, 2)
HELLO: list[Event] = [
    STARTED,
    Delta(text="Hel", tokens=1),
    Delta(text="lo", tokens=2),
    Delta(finish_reason="stop", stop_reason="END"),
    Done(usage=USAGE),
]
CALL: list[Event] = [
    STARTED,
    Delta(tool_calls=[ToolCallDelta(id="c1", type="function", function=FunctionCallDelta(name="f", arguments=""))]),
    Delta(tool_calls=[ToolCallDelta(function=FunctionCallDelta(arguments='{"a":'))]),
    Delta(tool_calls=[ToolCallDelta(function=FunctionCallDelta(arguments="1}"))]),
    Delta(tool_calls=[ToolCallDelta(index=1, id="c2", type="function", function=FunctionCallDelta(name="g"))]),
    Delta(finish_reason="tool_calls"),
    Done(usage=USAGE),
]
FAILED = Failed(kind=ErrorKind.UNAVAILABLE, message="The worker is gone.", code="lost")


def logprob(data: bytes, value: float | None = -0.5, top: int = 1) -> TokenLogprob:
    """The log probability of a token, and of itself as the most likely one."""
    return TokenLogprob(bytes=data, logprob=value, top=[Alternative(bytes=data, logprob=value or 0.0)] * top)


def records(chunks: Chunks, events: Iterable[Event]) -> list[dict[str, Any]]:
    """The JSON of the records that events make, `[DONE]` apart."""
    data = b"".join(chunks.records(event) for event in events)
    parts = data.split(b"\n\n")
    assert parts.pop() == b""
    assert all(part.startswith(b"data: ") for part in parts)
    return [json.loads(part[6:]) for part in parts if part != b"data: [DONE]"]


def choices(chunks: Chunks, events: Iterable[Event]) -> list[dict[str, Any]]:
    """The choices of those records."""
    return [choice for record in records(chunks, events) for choice in record["choices"]]


def folded(events: Iterable[Event], head: StreamHead = HEAD) -> Fold:
    """The events put together."""
    fold = Fold(head)
    for event in events:
        fold.add(event)
    return fold


# --- chunks ---


def test_role_stands_in_the_first_delta_of_each_choice() -> None:
    """Each choice begins with its role, once, and with content that is a string."""
    said = [Delta(index=0, text="a"), Delta(index=1), Delta(index=0, text="b"), Delta(index=1, text="c")]
    deltas = [(choice["index"], choice["delta"]) for choice in choices(ChatChunks(HEAD), [STARTED, *said])]

    assert deltas == [
        (0, {"role": "assistant", "content": "a"}),
        (1, {"role": "assistant", "content": ""}),
        (0, {"content": "b"}),
        (1, {"content": "c"}),
    ]


def test_head_is_the_same_in_every_record() -> None:
    """Id, model and creation time do not change within a stream."""
    heads = {
        (record["id"], record["model"], record["created"], record["object"])
        for record in records(ChatChunks(HEAD), HELLO)
    }

    assert heads == {("chatcmpl-1", "m", 7, "chat.completion.chunk")}


def test_stream_ends_with_done_once() -> None:
    """The terminal is the last thing said."""
    both: list[Chunks] = [ChatChunks(WITH_USAGE), CompletionChunks(HEAD)]
    for chunks in both:
        data = b"".join(chunks.records(event) for event in HELLO)

        assert data.endswith(DONE)
        assert data.count(DONE) == 1


def test_finish_reason_is_null_until_the_last_chunk() -> None:
    """A choice's last chunk says why it ended, and which stop string ended it."""
    chat = choices(ChatChunks(HEAD), HELLO)
    completion = choices(CompletionChunks(HEAD), HELLO)

    for made in (chat, completion):
        assert [choice["finish_reason"] for choice in made] == [None, None, "stop"]
        assert [choice.get("stop_reason") for choice in made] == [None, None, "END"]


def test_usage_is_absent_unless_asked_for() -> None:
    """Without the option no record has usage."""
    assert not any("usage" in record for record in records(ChatChunks(HEAD), HELLO))


def test_usage_chunk_comes_last_and_has_no_choices() -> None:
    """With include_usage every chunk has null, and one more before the end has the counts and no choices."""
    both: list[Chunks] = [ChatChunks(WITH_USAGE), CompletionChunks(WITH_USAGE)]
    for chunks in both:
        made = records(chunks, HELLO)

        assert [record["usage"] for record in made[:-1]] == [None, None, None]
        assert made[-1]["choices"] == []
        assert made[-1]["usage"] == {
            "prompt_tokens": 4,
            "completion_tokens": 3,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 2},
        }


def test_continuous_usage_counts_up() -> None:
    """With continuous usage every chunk has the counts so far."""
    made = records(ChatChunks(CONTINUOUS), HELLO)

    assert [record["usage"]["completion_tokens"] for record in made] == [1, 3, 3, 3]
    assert {record["usage"]["prompt_tokens"] for record in made} == {4}


@pytest.mark.parametrize("chunks", [ChatChunks(WITH_USAGE), CompletionChunks(WITH_USAGE)])
def test_failure_is_an_error_record_and_the_last(chunks: Chunks) -> None:
    """A failed stream ends with the error object: no usage, and no [DONE]."""
    events: list[Event] = [STARTED, Delta(text="a"), FAILED]
    data = b"".join(chunks.records(event) for event in events)
    error = {"message": "The worker is gone.", "type": "overloaded_error", "param": None, "code": "lost"}

    assert DONE not in data
    assert json.loads(data.split(b"\n\n")[-2][6:]) == {"error": error}


def test_tool_call_deltas_cross_piece_by_piece() -> None:
    """Every piece names its call's index; id, type and name come first and once."""
    made = [choice["delta"] for choice in choices(ChatChunks(HEAD), CALL)]

    assert made[0] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}],
    }
    assert made[1] == {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}
    assert made[3]["tool_calls"][0]["index"] == 1
    assert made[4] == {}


def test_reasoning_has_its_own_field() -> None:
    """Reasoning text does not mix with content."""
    made = choices(ChatChunks(HEAD), [STARTED, Delta(reasoning="hm"), Delta(reasoning="m", text="so")])

    assert made[0]["delta"] == {"role": "assistant", "content": None, "reasoning_content": "hm"}
    assert made[1]["delta"] == {"content": "so", "reasoning_content": "m"}


@pytest.mark.parametrize(
    "events", [HELLO, CALL, [STARTED, Delta(text="a", logprobs=[logprob(b"a")]), Done(usage=USAGE)]]
)
@pytest.mark.parametrize("head", [HEAD, WITH_USAGE, CONTINUOUS])
def test_chat_chunks_fit_the_public_schema(head: StreamHead, events: list[Event]) -> None:
    """Every chunk is one of the API document's, but that its usage chunk may also be null before the end, as documented."""
    for record in records(ChatChunks(head), events):
        if record.get("usage", 0) is None:
            del record["usage"]
        assert list(validator("CreateChatCompletionStreamResponse").iter_errors(record)) == []


def test_newlines_in_text_do_not_break_a_record() -> None:
    """Whatever text a model writes, a record is one line."""
    made = choices(ChatChunks(HEAD), [STARTED, Delta(text="a\n\ndata: [DONE]\r\n\n\u2028")])

    assert made[0]["delta"]["content"] == "a\n\ndata: [DONE]\r\n\n\u2028"


# --- the head ---


@pytest.mark.parametrize(
    ("options", "usage", "continuous"),
    [
        (UNSET, False, False),
        (None, False, False),
        ({}, False, False),
        ({"include_usage": True}, True, False),
        ({"include_usage": None, "continuous_usage_stats": True}, False, True),
    ],
)
def test_head_reads_the_stream_options(options: Any, usage: bool, continuous: bool) -> None:
    """Ids carry the request's own id, and both options default to false, null included."""
    body: dict[str, Any] = {"model": "x", "messages": [{"role": "user", "content": "a"}]}
    request = codec.read_chat_json(codec.encode_json(body if options is UNSET else body | {"stream_options": options}))

    assert stream_head("5", request, "m") == StreamHead(
        id="chatcmpl-5", model="m", include_usage=usage, continuous_usage=continuous
    )
    assert stream_head("5", CompletionRequest(model="x", prompt=""), "m").id == "cmpl-5"


# --- whole replies ---


def test_whole_reply_says_what_the_chunks_said() -> None:
    """A reply's text is its chunks' text put together."""
    reply = folded(HELLO).chat()
    text = "".join(choice["delta"].get("content") or "" for choice in choices(ChatChunks(HEAD), HELLO))

    assert reply.choices[0].message.content == text == "Hello"
    assert (reply.choices[0].finish_reason, reply.choices[0].stop_reason, reply.created) == ("stop", "END", 7)
    assert reply.usage == USAGE


DELTAS = st.builds(
    Delta,
    index=st.integers(0, 2),
    text=st.text(max_size=4),
    reasoning=st.just("") | st.text(max_size=3),
    logprobs=st.just(UNSET) | st.lists(st.builds(logprob, st.text(max_size=2).map(str.encode)), max_size=2),
)


@given(st.lists(DELTAS, max_size=10))
def test_fold_equals_concatenated_chunks(deltas: list[Delta]) -> None:
    """For any deltas of any choices, both ways say the same."""
    events: list[Event] = [STARTED, *deltas, Done(usage=USAGE)]
    chat, completion = folded(events).chat(), folded(events).completion()
    chat_chunks, completion_chunks = choices(ChatChunks(HEAD), events), choices(CompletionChunks(HEAD), events)

    for whole in chat.choices:
        parts = [part["delta"] for part in chat_chunks if part["index"] == whole.index]
        assert whole.message.content == "".join(part.get("content") or "" for part in parts)
        assert (whole.message.reasoning_content or "") == "".join(part.get("reasoning_content") or "" for part in parts)
    for index, made in enumerate(completion.choices):
        parts = [part for part in completion_chunks if part["index"] == made.index]
        assert made.text == "".join(part["text"] for part in parts) == (chat.choices[index].message.content or "")
        for name in ("tokens", "text_offset", "token_logprobs", "top_logprobs"):
            pieces = [item for part in parts if part["logprobs"] for item in part["logprobs"][name]]
            assert pieces == (getattr(made.logprobs, name) if made.logprobs else [])


def test_whole_tool_calls_are_put_together() -> None:
    """Pieces of calls become calls; content is null when there is nothing else."""
    message = folded(CALL).chat().choices[0].message

    assert message.content is None
    assert codec.encode_json(message.tool_calls) == (
        b'[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\\"a\\":1}"}},'
        b'{"id":"c2","type":"function","function":{"name":"g","arguments":""}}]'
    )


def test_choices_come_in_the_order_of_their_index() -> None:
    """Whichever choice speaks first, the reply lists them by index."""
    reply = folded([STARTED, Delta(index=1, text="b"), Delta(index=0, text="a"), Done(usage=USAGE)]).completion()

    assert [(choice.index, choice.text) for choice in reply.choices] == [(0, "a"), (1, "b")]


def test_failed_event_is_raised() -> None:
    """A failure within a whole reply is the error itself."""
    with pytest.raises(ServingError) as caught:
        folded([STARTED, FAILED])
    assert (caught.value.status, caught.value.code) == (503, "lost")


@pytest.mark.parametrize("events", [[], [STARTED], [STARTED, Delta(text="a", finish_reason="stop")]])
def test_events_without_a_terminal_are_no_reply(events: list[Event]) -> None:
    """An answer that just stops is the worker's failure, not an answer."""
    for reply in (folded(events).chat, folded(events).completion):
        with pytest.raises(ServingError) as caught:
            reply()
        assert caught.value.status == 502


def test_handoff_stands_in_every_choice() -> None:
    """A context leg's reply carries its hand-off where an orchestrator looks for it."""
    params = DisaggregatedParams(request_type="context_only", disagg_request_id=2**62)
    done = Done(usage=USAGE, handoff=Handoff(params=params, prompt_token_ids=[1, 2]))
    for reply in (
        folded([STARTED, Delta(text="a"), done]).chat(),
        folded([STARTED, Delta(text="a"), done]).completion(),
    ):
        assert reply.choices[0].disaggregated_params == params
        assert reply.prompt_token_ids == [1, 2]


@pytest.mark.parametrize("events", [HELLO, CALL])
def test_whole_replies_fit_the_public_schema(events: list[Event]) -> None:
    """A reply is one of the API document's."""
    chat = json.loads(codec.encode_json(folded(events).chat()))
    assert list(validator("CreateChatCompletionResponse").iter_errors(chat)) == []
    if events is HELLO:
        completion = json.loads(codec.encode_json(folded(events).completion()))
        assert list(validator("CreateCompletionResponse").iter_errors(completion)) == []


def test_replayed_reply_says_the_same() -> None:
    """A whole reply turned back into events and put together again is that reply."""
    with_logprobs: list[Event] = [
        STARTED,
        Delta(text="aé", tokens=3, logprobs=[logprob(b"a"), logprob(b"\xc3", -9.0), logprob(b"\xa9", -1.0, top=0)]),
        Delta(finish_reason="length"),
        Done(usage=USAGE),
    ]
    for events in (HELLO, CALL, with_logprobs):
        chat, completion = folded(events).chat(), folded(events).completion()

        assert folded(events_of(chat)).chat() == chat
        assert folded(events_of(completion)).completion() == completion


# --- log probabilities ---


@pytest.mark.parametrize(
    ("value", "told"),
    [(-0.5, -0.5), (0.0, 0.0), (-math.inf, -9999.0), (math.inf, -9999.0), (math.nan, -9999.0), (-1e300, -9999.0)],
)
def test_logprobs_are_finite(value: float, told: float) -> None:
    """What is no number, or none that JSON has, is the floor, in both shapes and among the alternatives."""
    delta = Delta(
        text="a", logprobs=[TokenLogprob(bytes=b"a", logprob=value, top=[Alternative(bytes=b"a", logprob=value)])]
    )
    chat = choices(ChatChunks(HEAD), [STARTED, delta])[0]["logprobs"]["content"][0]
    completion = choices(CompletionChunks(HEAD), [STARTED, delta])[0]["logprobs"]

    assert finite(value) == told
    assert (chat["logprob"], chat["top_logprobs"][0]["logprob"]) == (told, told)
    assert (completion["token_logprobs"], completion["top_logprobs"]) == ([told], [{"a": told}])


def test_first_token_of_an_echoed_prompt_has_no_logprob() -> None:
    """With echo the first entry is null in both lists, as evaluation tools expect."""
    made = completion_logprobs([logprob(b"a", None), logprob(b"b")], 0)

    assert (made.token_logprobs, made.top_logprobs) == ([None, -0.5], [None, {"b": -0.5}])


@given(st.text(min_size=1, max_size=12), st.sets(st.integers(1, 40)))
def test_text_offset_counts_characters(text: str, cuts: set[int]) -> None:
    """However a text is cut into tokens, each offset is where the token's first whole character stands in it."""
    data = text.encode()
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    tokens = [data[start:end] for start, end in pairwise(edges)]
    made = completion_logprobs([logprob(token) for token in tokens], 0)

    for start, offset in zip(edges, made.text_offset, strict=False):
        begun = sum(byte & 0xC0 != 0x80 for byte in data[:start])
        assert offset == begun
        if start == len(data[:start].decode(errors="ignore").encode()):
            assert text[offset:] == data[start:].decode()


def test_text_offset_goes_on_from_chunk_to_chunk() -> None:
    """Offsets are those of the whole text of the choice, not of the chunk."""
    events: list[Event] = [
        STARTED,
        Delta(text="日", logprobs=[logprob(b"\xe6"), logprob(b"\x97\xa5")]),
        Delta(index=1, text="x", logprobs=[logprob(b"x")]),
        Delta(text="本a", logprobs=[logprob("本".encode()), logprob(b"a")]),
    ]
    offsets = [choice["logprobs"]["text_offset"] for choice in choices(CompletionChunks(HEAD), events)]

    assert offsets == [[0, 1], [0], [1, 2]]


def test_token_that_is_part_of_a_character_is_written_as_bytes() -> None:
    """Such a token has no text; its bytes are told in the way OpenAI's API does."""
    assert token_text(b"\xf0\x9f") == "bytes:\\xf0\\x9f"
    assert token_text("é".encode()) == "é"
    made = choices(ChatChunks(HEAD), [STARTED, Delta(logprobs=[logprob(b"\xf0\x9f")])])
    assert made[0]["logprobs"]["content"][0]["bytes"] == [0xF0, 0x9F]
