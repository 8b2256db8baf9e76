"""Makes a load and measures what comes of it."""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final

from benchmarks.bodies import agentic, small
from benchmarks.load.exchange import Exchange, Outcome
from benchmarks.load.figures import Gaps, percentiles
from benchmarks.load.plan import Load, Measured
from benchmarks.processor_time import processor_seconds, resident_bytes, tree

PATH: Final = "/v1/chat/completions"
OPENING_RATE: Final = 500.0
"""Paced streams are opened at this rate, per second."""
GIVE_UP_SECONDS: Final = 10.0
"""How long replies are waited for after the end, before they count as failures."""

OnEnd = Callable[[Exchange, Outcome], None]
OnDelay = Callable[[float], None] | None


async def measure(load: Load) -> Measured:
    """Warm up, then measure. Every request that was sent in the measured time counts, also if it ends a little later."""
    generator = Generator(load)
    await generator.run()
    return generator.measured()


def request_of(load: Load) -> bytes:
    """The request, as bytes."""
    stream = load.events != 0
    body = agentic(load.size, load.alphabet, stream=stream) if load.size else small(stream=stream)
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{load.port}\r\nContent-Type: application/json\r\n"
        f"Accept: */*\r\nUser-Agent: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Generator:
    """One load, from its first connection to its last."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._request = request_of(load)
        self._probe = f"GET {load.probe} HTTP/1.1\r\nHost: 127.0.0.1:{load.port}\r\n\r\n".encode()
        self._idle: deque[Exchange] = deque()
        self._all: set[Exchange] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._in_flight = 0
        self._counting = False
        self._sending = True
        self._began = self._ended = self._cpu = 0.0
        self._resident = 0
        self.requests = self.failures = self.events = 0
        self._latency = array("d")
        self._first = array("d")
        self._delays = array("d")
        self._probes = array("d")
        self._gaps = Gaps()

    async def run(self) -> None:
        """The whole load."""
        load = self._load
        start = {"closed": self._closed, "open": self._open, "streams": self._streams}[load.mode]
        sending = [asyncio.create_task(start(), name="load")]
        if load.probe:
            sending.append(asyncio.create_task(self._probing(), name="probe"))
        await asyncio.sleep(load.warm + (load.connections / OPENING_RATE if load.mode == "streams" else 0.0))
        await self._count()
        self._sending = False
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, *self._opening, return_exceptions=True)
        await self._finish()

    async def _count(self) -> None:
        watched = tree(self._load.watch) if self._load.watch else []
        before, self._began = processor_seconds(watched), monotonic()
        self._counting = True
        await asyncio.sleep(self._load.seconds)
        self._counting = False
        self._cpu, self._ended = processor_seconds(watched) - before, monotonic()
        self._resident = resident_bytes(watched)

    async def _finish(self) -> None:
        deadline = monotonic() + GIVE_UP_SECONDS
        while self._in_flight and self._load.mode != "streams" and monotonic() < deadline:  # noqa: ASYNC110  see below
            await asyncio.sleep(0.01)  # What ends is counted where it ends; nobody waits for it but this line.
        if self._load.mode != "streams":
            self.failures += self._in_flight
        for exchange in self._all:
            exchange.close()

    def measured(self) -> Measured:
        """What was measured."""
        return Measured(
            requests=self.requests,
            failures=self.failures,
            seconds=self._ended - self._began,
            cpu=self._cpu,
            events=self.events,
            resident=self._resident,
            latency=percentiles(self._latency),
            first=percentiles(self._first),
            gap=percentiles(self._gaps.values),
            delay=percentiles(self._delays),
            probe=percentiles(self._probes),
        )

    # --- the ways to send ---

    async def _closed(self) -> None:
        for _ in range(self._load.connections):
            self._send(await self._connect(self._ended_closed))

    def _ended_closed(self, exchange: Exchange, outcome: Outcome) -> None:
        self._note(outcome)
        if self._sending:
            if exchange.is_open:
                self._send(exchange)
            else:
                self._keep(self._reopen())

    async def _reopen(self) -> None:
        self._send(await self._connect(self._ended_closed))

    async def _open(self) -> None:
        due = monotonic()
        while True:
            due += 1 / self._load.rate
            await asyncio.sleep(due - monotonic())
            while self._idle and not self._idle[-1].is_open:
                self._idle.pop()
            if self._idle:
                self._send(self._idle.pop(), due)
            else:
                self._keep(self._send_on_new(due))

    async def _send_on_new(self, due: float) -> None:
        self._send(await self._connect(self._ended_open), due)

    def _ended_open(self, exchange: Exchange, outcome: Outcome) -> None:
        self._note(outcome)
        self._idle.append(exchange)

    async def _streams(self) -> None:
        begun = monotonic()
        for index in range(self._load.connections):
            await asyncio.sleep(begun + index / OPENING_RATE - monotonic())
            self._keep(self._open_stream())

    async def _open_stream(self) -> None:
        exchange = await self._connect(self._ended_early, on_delay=self._note_delay)
        self._send(exchange)

    def _ended_early(self, _exchange: Exchange, outcome: Outcome) -> None:
        self._in_flight -= 1
        self.failures += not outcome.ok or self._sending

    async def _probing(self) -> None:
        due = monotonic()
        idle: deque[Exchange] = deque()

        def ended(exchange: Exchange, outcome: Outcome) -> None:
            idle.append(exchange)
            if self._counting:
                self._probes.append(outcome.ended - outcome.sent)
                self.failures += not outcome.ok

        async def ask(due: float) -> None:
            (idle.pop() if idle else await self._connect(ended)).send(self._probe, scheduled=due)

        while True:
            due += 1 / self._load.probe_rate
            await asyncio.sleep(due - monotonic())
            self._keep(ask(due))

    # --- what they share ---

    async def _connect(self, on_end: OnEnd, on_delay: OnDelay = None) -> Exchange:
        loop = asyncio.get_running_loop()
        _, exchange = await loop.create_connection(lambda: Exchange(on_end, on_delay), "127.0.0.1", self._load.port)
        self._all.add(exchange)
        return exchange

    def _keep(self, opening: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(opening, name="opening")
        self._opening.add(task)
        task.add_done_callback(self._opened)

    def _opened(self, task: "asyncio.Task[None]") -> None:
        self._opening.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failures += 1

    def _send(self, exchange: Exchange, due: float | None = None) -> None:
        self._in_flight += 1
        exchange.send(self._request, self._load.events, due)

    def _note(self, outcome: Outcome) -> None:
        self._in_flight -= 1
        self.failures += not outcome.ok
        if not self._counting or not outcome.ok:
            return
        self.requests += 1
        self._latency.append(outcome.ended - outcome.sent)
        self._first.append(outcome.first - outcome.sent)
        before = 0.0
        for arrived, events in outcome.arrivals:
            self.events += events
            if before:
                self._gaps.arrived(arrived - before, events)
            before = arrived

    def _note_delay(self, seconds: float) -> None:
        if self._counting:
            self.events += 1
            self._delays.append(seconds)
