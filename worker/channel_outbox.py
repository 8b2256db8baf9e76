"""What is to be written on one rpc: whatever is ready goes out as one message, because a message costs more than an event."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, NoReturn

from schemas.codec import encode_frame
from schemas.events import Event, Failed
from schemas.openai.errors import ErrorKind
from schemas.pb.channel_pb2 import EVENTS, Frame

MAX_WAITING_EVENTS: Final = 4096
"""Events that wait to be written; whoever has more waits, and the engine merges meanwhile."""
MAX_WAITING_BYTES: Final = 8 << 20
"""Payload bytes of frames that wait to be written; a reply waits while there are more."""
MAX_BATCH_EVENTS: Final = 4096
GATHER_SECONDS: Final = 0.001
"""Under load a message follows the one before no sooner than this; without load nothing ever waits."""
BUSY_EVENTS: Final = 8
BUSY_BYTES: Final = 1 << 16
"""A message of so many events, or of so many bytes, means load."""

Pair = tuple[int, Event]


class Outbox:
    """Events and replies of one rpc on their way out, read by one writer. Replies overtake nothing: they come before later events.

    Bounded: events and replies wait for room. Signals (PING, GOAWAY) never do, and of each kind only the latest is kept.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self.messages = 0
        """Frames handed out."""
        self._max_message_bytes = max_message_bytes
        self._frames: list[Frame] = []
        self._events: list[Pair] = []
        self._signals: dict[int, Frame] = {}
        self._waiting_bytes = 0
        self._has_mail = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._written = asyncio.Event()
        self._written.set()
        self._busy = False
        self._sent_at = 0.0

    async def put_events(self, stream: int, events: list[Event]) -> None:
        """Send the events of a stream; first waits until those before have gone, if they are too many."""
        await self._has_room.wait()
        self._events += [(stream, event) for event in events]
        if len(self._events) >= MAX_WAITING_EVENTS:
            self._flush()
            self._has_room.clear()
        self._posted()

    async def put_reply(self, reply: Frame) -> None:
        """Send a reply, after the events that are waiting already; first waits until there is room."""
        await self._has_room.wait()
        self._flush()
        self._append(reply)
        self._posted()

    def put_signal(self, signal: Frame) -> None:
        """Send a PING or GOAWAY with the next message, in place of one of its kind that has not gone yet. Never waits."""
        self._signals[signal.kind] = signal
        self._posted()

    async def write_all(self, write: Callable[[Frame], Awaitable[None]]) -> NoReturn:
        """Send what there is to send, for as long as this is not cancelled."""
        while True:
            for frame in await self._next():
                await write(frame)
            if not (self._frames or self._events or self._signals):
                self._written.set()

    async def flushed(self) -> None:
        """Wait until everything that was put has been written."""
        await self._written.wait()

    async def _next(self) -> list[Frame]:
        """Everything that is ready, once something is."""
        await self._has_mail.wait()
        # Whoever else has something to say in this turn of the loop says it in the same message.
        await asyncio.sleep(0)
        if self._busy:
            await asyncio.sleep(max(self._sent_at + GATHER_SECONDS - monotonic(), 0.0))
        self._busy = len(self._events) >= BUSY_EVENTS or self._waiting_bytes >= BUSY_BYTES
        self._flush()
        frames, self._frames = [*self._signals.values(), *self._frames], []
        self._signals.clear()
        self._waiting_bytes = 0
        self._has_room.set()
        self._has_mail.clear()
        self._sent_at = monotonic()
        self.messages += len(frames)
        return frames

    def _posted(self) -> None:
        self._has_mail.set()
        self._written.clear()

    def _flush(self) -> None:
        """Turn the waiting events into frames."""
        events, self._events = self._events, []
        for start in range(0, len(events), MAX_BATCH_EVENTS):
            for frame in event_frames(events[start : start + MAX_BATCH_EVENTS], self._max_message_bytes):
                self._append(frame)

    def _append(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._waiting_bytes += len(frame.payload)
        if self._waiting_bytes >= MAX_WAITING_BYTES:
            self._has_room.clear()


def event_frames(pairs: list[Pair], max_message_bytes: int) -> list[Frame]:
    """One EVENTS frame, or several where one would be larger than a message may be. An event too large for any fails its stream."""
    payload = encode_frame(pairs)
    if len(payload) <= max_message_bytes:
        return [Frame(kind=EVENTS, payload=payload)]
    if len(pairs) > 1:
        half = len(pairs) // 2
        return [*event_frames(pairs[:half], max_message_bytes), *event_frames(pairs[half:], max_message_bytes)]
    message = f"The reply holds an event of more than {max_message_bytes} bytes."
    failed = Failed(kind=ErrorKind.TOO_LARGE, message=message, code="reply_too_large")
    return [Frame(kind=EVENTS, payload=encode_frame([(pairs[0][0], failed)]))]
