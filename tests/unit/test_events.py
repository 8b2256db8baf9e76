"""Merging deltas loses nothing, wherever the stream is cut."""

from functools import reduce
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from schemas import codec
from schemas.disagg import DisaggregatedParams
from schemas.events import Alternative, Delta, Done, Event, Failed, Handoff, Started, TokenLogprob, merge
from schemas.openai.chat import FunctionCallDelta, ToolCallDelta
from schemas.openai.errors import ErrorKind
from schemas.openai.usage import usage_of

LOGPROBS = st.builds(
    TokenLogprob,
    bytes=st.binary(max_size=3),
    logprob=st.floats(max_value=0, allow_nan=False),
    top=st.lists(st.builds(Alternative, bytes=st.binary(max_size=2), logprob=st.floats(max_value=0)), max_size=2),
)
CALLS = st.builds(
    ToolCallDelta,
    index=st.integers(0, 1),
    function=st.builds(FunctionCallDelta, arguments=st.text(max_size=3)),
)
DELTAS = st.builds(
    Delta,
    index=st.just(3),
    text=st.text(max_size=4),
    reasoning=st.text(max_size=4),
    tokens=st.integers(0, 5),
    tool_calls=st.just(UNSET) | st.lists(CALLS, max_size=2),
    logprobs=st.just(UNSET) | st.lists(LOGPROBS, max_size=2),
)
EVENTS: list[Event] = [
    Started(created=1, prompt_tokens=2, cached_tokens=1),
    Delta(index=1, text="a", tokens=1, logprobs=[TokenLogprob(bytes=b"\xf0\x9f", logprob=None)]),
    Delta(finish_reason="stop", stop_reason=7),
    Done(usage=usage_of(1, 2)),
    Done(
        usage=usage_of(1, 1),
        handoff=Handoff(params=DisaggregatedParams(request_type="context_only"), prompt_token_ids=[1, 2]),
    ),
    Failed(kind=ErrorKind.DEADLINE, message="m", code="c"),
]


def whole(deltas: list[Delta]) -> tuple[object, ...]:
    """What deltas say together."""
    return (
        "".join(delta.text for delta in deltas),
        "".join(delta.reasoning for delta in deltas),
        sum(delta.tokens for delta in deltas),
        [call for delta in deltas for call in delta.tool_calls or []],
        [entry for delta in deltas for entry in delta.logprobs or []],
        [delta.finish_reason for delta in deltas if delta.finish_reason is not UNSET],
        [delta.stop_reason for delta in deltas if delta.stop_reason is not UNSET],
    )


@given(st.lists(DELTAS, min_size=1, max_size=8), st.sets(st.integers(1, 7)))
def test_merging_keeps_everything_in_order(deltas: list[Delta], cuts: set[int]) -> None:
    """However consecutive deltas are grouped before they are merged, what they say together is the same."""
    deltas[-1].finish_reason, deltas[-1].stop_reason = "stop", "END"
    edges = [0, *sorted(cut for cut in cuts if cut < len(deltas)), len(deltas)]
    groups = [deltas[start:end] for start, end in pairwise(edges)]
    merged = [reduce(merge, group) for group in groups]

    assert whole(merged) == whole(deltas)
    assert {delta.index for delta in merged} == {3}
    assert merged[-1].finish_reason == "stop"


@given(DELTAS, DELTAS, DELTAS)
def test_merging_is_associative(first: Delta, second: Delta, third: Delta) -> None:
    """It does not matter which of three deltas are merged before the third."""
    assert merge(merge(first, second), third) == merge(first, merge(second, third))


@given(DELTAS, DELTAS)
def test_merging_changes_neither(first: Delta, second: Delta) -> None:
    """The two deltas are as they were: somebody may still hold them."""
    before = msgspec.msgpack.encode([first, second])
    merge(first, second)

    assert msgspec.msgpack.encode([first, second]) == before


def test_absent_parts_stay_absent() -> None:
    """Without log probabilities or tool calls on either side, the merged delta has none."""
    assert merge(Delta(text="a"), Delta(text="b")) == Delta(text="ab")


@pytest.mark.parametrize("event", EVENTS)
def test_event_is_read_as_written(event: Event) -> None:
    """Every event survives msgpack, bytes that are no text included."""
    assert codec.read_events(codec.encode_frame([(9, event)])) == ([(9, event)], 0)


def test_events_are_tagged_by_a_short_string() -> None:
    """The tag tells events apart on the wire; it is part of the contract."""
    tags = [msgspec.msgpack.decode(codec.encode_frame(event))["type"] for event in EVENTS]

    assert tags == ["started", "delta", "delta", "done", "done", "failed"]
    assert set(tags) == codec.EVENT_TAGS
