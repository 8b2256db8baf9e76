"""The channel's heartbeat while frames of our own are slow: on a wire that takes them when the test says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.links.base import Deadlines, LinkError, WorkerSilent
from gateway.links.event_stream import EventStream
from gateway.links.exchange import SLOWEST_BYTES_PER_SECOND, Exchange, Heartbeat
from gateway.links.read_window import ReadWindow
from schemas.codec import encode_frame
from schemas.pb.channel_pb2 import EVENTS, GOAWAY, OPEN, PING, Frame
from tests.unit.links.raw_server import until
from tests.unit.links.scripted_channel import DONE, HELLO, STARTED

SHORT = 0.05
PATIENT = Deadlines(connect=20, first_byte=20, idle=20, total=20)


class HeldWire:
    """Takes OPEN frames once `taken` is set; the worker behind it answers each at once, and each PING with `pong`."""

    def __init__(self, pong: Frame | None = None) -> None:
        self.taken = asyncio.Event()
        self.written: list[int] = []
        self._pong = pong
        self._said: asyncio.Queue[Frame] = asyncio.Queue()

    async def read(self) -> Frame | None:
        """What the worker says next."""
        return await self._said.get()

    async def write(self, frame: Frame) -> None:
        """Hold it up, then pass it on."""
        if frame.kind == OPEN:
            await self.taken.wait()
            answer = encode_frame([(frame.stream, event) for event in (STARTED, HELLO, DONE)])
            self._said.put_nowait(Frame(kind=EVENTS, payload=answer))
        elif frame.kind == PING and self._pong is not None:
            self._said.put_nowait(self._pong)
        self.written.append(frame.kind)

    async def close(self) -> None:
        """Nothing is open."""


def exchange_on(wire: HeldWire, interval: float, patience: float) -> Exchange:
    """An exchange with this heartbeat."""
    return Exchange(wire, "The worker", Heartbeat(interval=interval, patience=patience), ReadWindow())


def ask(exchange: Exchange, payload: bytes = b"") -> EventStream:
    """A request with this payload."""
    return exchange.open("/v1/chat/completions", payload, {}, PATIENT, asyncio.get_running_loop().time() + 20)


@asynccontextmanager
async def running(exchange: Exchange) -> AsyncIterator[None]:
    """Serve it meanwhile."""
    serving = asyncio.create_task(exchange.run())
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.wait({serving})


async def answer_of(stream: EventStream) -> int | LinkError:
    """How many events a stream has, or what it fails with."""
    try:
        return len([event async for event in stream])
    except LinkError as error:
        return error


async def test_a_large_frame_of_ours_is_not_the_workers_silence() -> None:
    """A worker that cannot say a word before it has our frame is waited for, although that takes five times the patience."""
    wire = HeldWire(Frame(kind=PING))
    exchange = exchange_on(wire, interval=SHORT / 5, patience=SHORT)
    stream = ask(exchange, bytes(2 * SLOWEST_BYTES_PER_SECOND))
    asyncio.get_running_loop().call_later(5 * SHORT, wire.taken.set)

    async with running(exchange):
        assert await answer_of(stream) == 3


async def test_a_ping_waits_for_one_frame_only() -> None:
    """It goes before the requests that wait behind the one being written."""
    wire = HeldWire(Frame(kind=PING))
    exchange = exchange_on(wire, interval=0.0, patience=20)
    streams = [ask(exchange) for _ in range(3)]
    async with running(exchange):
        await until(lambda: any(frame.kind == PING for frame in exchange._outbox))
        wire.taken.set()

        assert [await answer_of(stream) for stream in streams] == [3, 3, 3]
    assert wire.written[:4] == [OPEN, PING, OPEN, OPEN]


async def test_a_worker_that_takes_nothing_is_silent() -> None:
    """A frame is not waited for without end: its streams fail."""
    exchange = exchange_on(HeldWire(), interval=SHORT / 5, patience=SHORT)
    stream = ask(exchange, bytes(1000))
    async with asyncio.timeout(10):
        await exchange.run()

    assert exchange.ended
    assert isinstance(await answer_of(stream), WorkerSilent)


async def test_any_word_is_a_sign_of_life() -> None:
    """A worker that has other things to say than our PING is alive."""
    wire = HeldWire(Frame(kind=GOAWAY))
    exchange = exchange_on(wire, interval=0.0, patience=20)
    async with running(exchange):
        await until(lambda: wire.written.count(PING) == 10)
        assert not exchange.ended
