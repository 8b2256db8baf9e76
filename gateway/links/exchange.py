"""Many requests over one bidirectional rpc: numbers, one writer, one reader who never waits for a stream, a heartbeat.

Knows frames but no gRPC: a `Wire` is what the edge module (`gateway/links/grpc.py`) offers of an open rpc.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, NoReturn, Protocol

import structlog
from msgspec import Struct

from gateway.links.base import BadReply, Deadlines, LinkError, Reply, WorkerLost, WorkerSilent
from gateway.links.event_stream import EventStream
from gateway.links.read_window import ReadWindow
from schemas.codec import DecodeFailure, read_events
from schemas.pb.channel_pb2 import CANCEL, EVENTS, GOAWAY, OPEN, PING, REPLY, Frame

SLOWEST_BYTES_PER_SECOND: Final = 1 << 20
"""How fast a frame is taken at least, by a worker that is alive and not in a hurry."""

_log = structlog.get_logger(__name__)


class Heartbeat(Struct, frozen=True, kw_only=True):
    """When a channel counts as dead: silent for `interval` seconds, and then for `patience` more after a PING.

    `patience` is generous because a worker may be busy with one long prompt. It is extended by the time that a frame may take which
    is being written when the PING is due, so that a large prompt of ours is not taken for a worker's silence.
    """

    interval: float = 5.0
    patience: float = 15.0


class Wire(Protocol):
    """An open rpc. Raises LinkError for whatever ends it."""

    async def read(self) -> Frame | None:
        """The next frame, None when the worker has ended the rpc."""
        ...

    async def write(self, frame: Frame) -> None:
        """Send a frame; returns when the transport has taken it."""
        ...

    async def close(self) -> None:
        """End the rpc and its connection. A second call does nothing."""
        ...


class Exchange:
    """The requests of one rpc. `run` serves them until it ends; then every stream that is not complete fails."""

    def __init__(self, wire: Wire, name: str, heartbeat: Heartbeat, window: ReadWindow) -> None:
        self.draining = False
        """Whether the worker has said that it will end: nothing new is sent to it."""
        self.ended = False
        self.skipped_events = 0
        """Events of tags this version does not know."""
        self.messages = 0
        """Frames received."""
        self._wire = wire
        self._name = name
        self._heartbeat = heartbeat
        self._window = window
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, EventStream] = {}
        self._last_number = 0
        self._outbox: list[Frame] = []
        self._writing_bytes = 0  # Of the frame that the wire has not taken yet.
        self._has_mail = asyncio.Event()
        self._heard = asyncio.Event()

    @property
    def open_streams(self) -> int:
        """Requests that are not complete."""
        return len(self._streams)

    def open(
        self, operation: str, frame: bytes, headers: Mapping[str, str], deadlines: Deadlines, give_up: float
    ) -> EventStream:
        """Send a request. `give_up` is on the loop's clock. Never blocks."""
        self._last_number += 1
        number = self._last_number
        stream = EventStream(self, number, self._name, deadlines, give_up, self._window)
        if self.ended:
            stream.fail(WorkerLost(f"The channel to {self._name} has ended."))
            return stream
        self._streams[number] = stream
        self._post(Frame(stream=number, kind=OPEN, operation=operation, headers=headers, payload=frame))
        return stream

    def cancel(self, number: int) -> None:
        """End a request. One that was not sent yet never is."""
        if self._streams.pop(number, None) is None:
            return
        unsent = next((frame for frame in self._outbox if frame.stream == number), None)
        if unsent is not None:
            self._outbox.remove(unsent)
        else:
            self._post(Frame(stream=number, kind=CANCEL))

    async def run(self) -> None:
        """Serve until the rpc ends, or the worker is silent for too long, or this is cancelled. Never raises a LinkError."""
        failure: LinkError = WorkerLost(f"The channel to {self._name} was closed.")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(), name="exchange-reader")
                tasks.create_task(self._write(), name="exchange-writer")
                tasks.create_task(self._watch(), name="exchange-heartbeat")
        except* LinkError as group:
            failure = _first(group)
        finally:
            self._end(failure)

    def _end(self, failure: LinkError) -> None:
        self.ended = True
        if self._streams:
            _log.warning("channel.streams_failed", streams=len(self._streams), reason=str(failure))
        streams, self._streams = self._streams, {}
        self._outbox.clear()
        for stream in streams.values():
            # Each its own object: they are raised in tasks that know nothing of each other.
            own = type(failure)(str(failure))
            own.__cause__ = failure
            stream.fail(own)

    def _post(self, frame: Frame) -> None:
        self._outbox.append(frame)
        self._has_mail.set()

    # --- the three tasks; each ends only by raising ---

    async def _write(self) -> NoReturn:
        while True:
            await self._has_mail.wait()
            while self._outbox:
                frame = self._outbox.pop(0)
                self._writing_bytes = len(frame.payload)
                await self._wire.write(frame)
                self._writing_bytes = 0
            self._has_mail.clear()

    async def _watch(self) -> NoReturn:
        beat = self._heartbeat
        while True:
            self._heard.clear()
            await asyncio.sleep(beat.interval)
            if self._heard.is_set():
                continue
            # Before whatever else waits; only the frame that is being written now goes first.
            self._outbox.insert(0, Frame(kind=PING))
            self._has_mail.set()
            patience = beat.patience + self._writing_bytes / SLOWEST_BYTES_PER_SECOND
            try:
                async with asyncio.timeout(patience):
                    await self._heard.wait()
            except TimeoutError as error:
                raise WorkerSilent(f"{self._name} did not answer a ping within {patience:.1f} s.") from error

    async def _read(self) -> NoReturn:
        while (frame := await self._wire.read()) is not None:
            self.messages += 1
            self._heard.set()
            self._take(frame)
        raise WorkerLost(f"{self._name} has closed the channel.")

    def _take(self, frame: Frame) -> None:
        """Deal with one frame; kinds that are not known here are skipped."""
        if frame.kind == EVENTS:
            self._deal(frame.payload)
        elif frame.kind == REPLY:
            reply = self._reply(frame)
            stream = self._streams.pop(frame.stream, None)
            if stream is not None:
                stream.answer(reply)
        elif frame.kind == GOAWAY:
            self.draining = True

    def _deal(self, payload: bytes) -> None:
        """Give the events of a batch to their streams; those of a stream that was cancelled, or has ended, are dropped."""
        try:
            batch, skipped = read_events(payload)
        except DecodeFailure as error:
            raise BadReply(f"{self._name} sent a batch that is not one: {error}") from error
        self.skipped_events += skipped
        touched: dict[int, EventStream] = {}
        for number, event in batch:
            stream = self._streams.get(number)
            if stream is not None and not stream.ended:
                stream.put(event)
                touched[number] = stream
        now = self._loop.time()
        for number, stream in touched.items():
            stream.wake(now)
            if stream.ended:
                del self._streams[number]

    def _reply(self, frame: Frame) -> Reply:
        headers = {name.lower(): value for name, value in frame.headers.items()}
        status = headers.pop("status", "")
        if len(status) != 3 or not status.isdecimal():
            raise BadReply(f"{self._name} sent a reply without a status.")
        return Reply(int(status), headers, frame.payload)


def _first(group: BaseExceptionGroup[LinkError]) -> LinkError:
    """One failure out of a group: they come together, and one of them is the cause."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, LinkError) else WorkerLost(str(error))
