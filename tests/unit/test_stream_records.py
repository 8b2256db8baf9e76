"""Records of plain text take a short way: it must lead to the same bytes as the long one."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.events import Delta, Started
from schemas.openai.stream import ChatChunks, CompletionChunks, StreamHead

Chunks = ChatChunks | CompletionChunks

deltas = st.lists(
    st.builds(
        Delta,
        index=st.integers(0, 2),
        text=st.one_of(st.text(max_size=4), st.sampled_from(["text", '"text"', "\\", "\u2028", ""])),
        reasoning=st.sampled_from(["", "", "hm"]),
        tokens=st.just(1),
        finish_reason=st.sampled_from([msgspec.UNSET, msgspec.UNSET, "stop"]),
    ),
    max_size=12,
)
heads = st.builds(
    StreamHead,
    id=st.just("chatcmpl-1"),
    model=st.sampled_from(["m", '"text"']),
    include_usage=st.booleans(),
    continuous_usage=st.booleans(),
)


@pytest.mark.parametrize("kind", [ChatChunks, CompletionChunks])
@given(head=heads, said=deltas)
def test_the_short_way_writes_the_same(kind: type[Chunks], head: StreamHead, said: list[Delta]) -> None:
    """Whatever is said, in whichever order of choices, a stream's bytes do not depend on the way they were made."""
    short, long = kind(head), kind(head)
    for chunks in (short, long):
        chunks.records(Started(created=1, prompt_tokens=1))
    for delta in said:
        long._frames.clear()

        assert short.records(delta) == long.records(delta)
