"""The buffer between a channel that never waits and a reader who may be slow."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from gateway.links.event_buffer import EventBuffer
from schemas.events import Delta, Done, Event, Failed, Started
from schemas.openai.errors import ErrorKind
from schemas.openai.usage import usage_of

STARTED = Started(created=1, prompt_tokens=2)
ENDS: list[Event] = [Done(usage=usage_of(2, 3)), Failed(kind=ErrorKind.INTERNAL, message="It broke.")]

deltas = st.builds(Delta, index=st.integers(0, 3), text=st.text(max_size=3), tokens=st.integers(0, 2))


def said(events: list[Event]) -> dict[int, tuple[str, int]]:
    """Text and tokens of each choice."""
    texts: dict[int, str] = defaultdict(str)
    tokens: dict[int, int] = defaultdict(int)
    for event in events:
        if isinstance(event, Delta):
            texts[event.index] += event.text
            tokens[event.index] += event.tokens
    return {index: (texts[index], tokens[index]) for index in texts}


class TestEventBuffer:
    @given(st.lists(st.tuples(deltas, st.booleans()), max_size=60), st.sampled_from(ENDS), st.integers(1, 8))
    def test_nothing_is_lost(self, puts: list[tuple[Delta, bool]], end: Event, limit: int) -> None:
        """However puts and takes interleave, every choice's text and tokens arrive, Started first and the terminal last."""
        buffer, taken = EventBuffer(limit), list[Event]()
        buffer.put(STARTED)
        for delta, take in puts:
            buffer.put(delta)
            taken += buffer.take() if take else []
        buffer.put(end)
        taken += buffer.take()

        assert said(taken) == said([delta for delta, _ in puts])
        assert (taken[0], taken[-1], len(buffer)) == (STARTED, end, 0)

    def test_a_reader_that_keeps_up_gets_events_as_they_came(self) -> None:
        """Below the limit nothing is merged."""
        buffer = EventBuffer(8)
        events: list[Event] = [STARTED, *(Delta(text=str(number)) for number in range(6)), ENDS[0]]
        for event in events:
            buffer.put(event)

        assert buffer.take() == events

    def test_a_stalled_reader_costs_bounded_memory(self) -> None:
        """Ten thousand deltas of four choices that nobody reads are never more than the limit."""
        buffer, most = EventBuffer(16), 0
        for number in range(10_000):
            buffer.put(Delta(index=number % 4, text="x", tokens=1))
            most = max(most, len(buffer))

        assert most <= 16
        assert said(buffer.take()) == dict.fromkeys(range(4), ("x" * 2500, 2500))

    def test_the_finish_of_a_choice_survives_merging(self) -> None:
        """The finish reason of a choice's last delta stands in what was merged."""
        buffer = EventBuffer(2)
        for delta in (Delta(text="a"), Delta(text="b"), Delta(text="c", finish_reason="stop", stop_reason="x")):
            buffer.put(delta)

        assert buffer.take() == [Delta(text="abc", finish_reason="stop", stop_reason="x")]
