"""The worker's side of writing: one message for whatever is ready, never one that is too large, never without bound."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from schemas.codec import read_events
from schemas.events import Delta, Event, Failed
from schemas.openai.errors import ErrorKind
from schemas.pb.channel_pb2 import EVENTS, PING, REPLY, Frame
from worker.channel_outbox import MAX_WAITING_BYTES, MAX_WAITING_EVENTS, Outbox, event_frames


class Writing:
    """A writer that has written `frames`, and goes on only while `open` is set."""

    def __init__(self, outbox: Outbox) -> None:
        self.frames: list[Frame] = []
        self.open = asyncio.Event()
        self.open.set()
        self._task = asyncio.create_task(outbox.write_all(self._write), name="writer")

    async def _write(self, frame: Frame) -> None:
        await self.open.wait()
        self.frames.append(frame)

    async def end(self) -> None:
        """Stop writing."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture
def outbox() -> Outbox:
    """An outbox whose messages have at most 1,000 bytes."""
    return Outbox(1000)


@pytest.fixture
async def writing(outbox: Outbox) -> AsyncIterator[Writing]:
    """Its writer."""
    writer = Writing(outbox)
    yield writer
    await writer.end()


def events_of(frames: list[Frame]) -> list[tuple[int, Event]]:
    """Everything in the EVENTS frames, in order."""
    return [pair for frame in frames if frame.kind == EVENTS for pair in read_events(frame.payload)[0]]


async def test_what_several_say_in_one_turn_is_one_message(outbox: Outbox, writing: Writing) -> None:
    """Five streams that are ready together cost one frame, in the order in which they spoke."""
    for number in range(5):
        await outbox.put_events(number, [Delta(text="a")])
    await outbox.flushed()

    assert len(writing.frames) == 1
    assert [number for number, _ in events_of(writing.frames)] == list(range(5))


async def test_a_frame_comes_after_the_events_before_it(outbox: Outbox, writing: Writing) -> None:
    """The order of what was put is the order of what is written."""
    await outbox.put_events(1, [Delta(text="a")])
    await outbox.put_reply(Frame(kind=REPLY))
    await outbox.put_events(1, [Delta(text="b")])
    await outbox.flushed()

    assert [frame.kind for frame in writing.frames] == [EVENTS, REPLY, EVENTS]


async def test_who_says_too_much_waits(outbox: Outbox, writing: Writing) -> None:
    """While nothing can be written, a stream that is ahead is held up, and goes on afterwards."""
    writing.open.clear()
    await outbox.put_events(1, [Delta(tokens=1)] * MAX_WAITING_EVENTS)
    ahead = asyncio.create_task(outbox.put_events(1, [Delta(text="last")]))
    # The writer takes the first ones and stands still at the first frame; two more fill the room again.
    done, _ = await asyncio.wait({ahead}, timeout=0)
    assert done == set()

    writing.open.set()
    await ahead
    await outbox.flushed()
    assert len(events_of(writing.frames)) == MAX_WAITING_EVENTS + 1


async def test_replies_wait_for_room(outbox: Outbox, writing: Writing) -> None:
    """A peer that does not read is owed so many bytes and no more: whoever has another reply waits."""
    writing.open.clear()
    for _ in range(2):  # One that the writer holds, and one that fills the room.
        await outbox.put_reply(Frame(kind=REPLY, payload=bytes(MAX_WAITING_BYTES)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    ahead = asyncio.create_task(outbox.put_reply(Frame(kind=REPLY)))
    done, _ = await asyncio.wait({ahead}, timeout=0)
    assert done == set()

    writing.open.set()
    await ahead
    await outbox.flushed()
    assert len(writing.frames) == 3


async def test_pings_of_a_peer_that_does_not_read_do_not_pile_up(outbox: Outbox, writing: Writing) -> None:
    """Of a thousand signals that could not go, the latest goes."""
    writing.open.clear()
    await outbox.put_reply(Frame(kind=REPLY))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for number in range(1000):
        outbox.put_signal(Frame(kind=PING, payload=str(number).encode()))
    writing.open.set()
    await outbox.flushed()

    assert [frame.payload for frame in writing.frames if frame.kind == PING] == [b"999"]


async def test_under_load_messages_are_spaced(outbox: Outbox, writing: Writing) -> None:
    """After a full message the next one gathers: what is said turn by turn within a millisecond shares messages."""
    await outbox.put_events(1, [Delta(tokens=1)] * 20)
    await outbox.flushed()
    before = len(writing.frames)
    for _ in range(20):
        await outbox.put_events(1, [Delta(tokens=1)])
        await asyncio.sleep(0)
    await outbox.flushed()

    assert len(writing.frames) - before <= 3


def test_a_batch_too_large_is_split() -> None:
    """Every frame is within the limit and nothing is lost or reordered."""
    pairs: list[tuple[int, Event]] = [(number, Delta(text="x" * 300)) for number in range(10)]
    frames = event_frames(pairs, 1000)

    assert max(len(frame.payload) for frame in frames) <= 1000
    assert events_of(frames) == pairs


def test_an_event_too_large_fails_its_stream() -> None:
    """It becomes a Failed of its own stream; its neighbours pass."""
    frames = event_frames([(1, Delta(text="a")), (2, Delta(text="x" * 2000)), (3, Delta(text="b"))], 1000)
    first, second, third = (event for _, event in events_of(frames))

    assert isinstance(second, Failed)
    assert (second.kind, first, third) == (ErrorKind.TOO_LARGE, Delta(text="a"), Delta(text="b"))
