"""A client leaves so many turns of the event loop after the engine's last token: at each until its answer is there, and after."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import httpx2

from tests.chaos.raw_client import Asker, chat, request_of
from tests.contract.serving import serving_gateway
from tests.worker_rig import serving
from worker.engines.base import Leg, SequenceOutput, SequenceRequest
from worker.engines.scripted.clock import LoopClock
from worker.engines.scripted.engine import ScriptedEngine, Settings
from worker.engines.scripted.script import Script

TURNS = 12
"""An answer takes four turns over HTTP and about seven over gRPC, whose own threads come between."""
ROUNDS = 25
SETTLE_SECONDS = 20.0
GAUGES = (
    "packrelay_gateway_in_flight",
    "packrelay_gateway_waiting",
    "packrelay_gateway_body_bytes",
    "packrelay_gateway_worker_legs_in_flight",
    "packrelay_gateway_tasks",
    "packrelay_worker_in_flight",
    "packrelay_worker_states",
    "packrelay_worker_state_bytes",
)
"""Counts of what is open. All parts share the loop whose tasks the gateway counts."""


class LastWord(ScriptedEngine):
    """Calls `told` when it has said the last token of an answer, before anybody else knows."""

    def __init__(self) -> None:
        super().__init__("scripted", Settings(), Script(), LoopClock())
        self.told: Callable[[], None] = lambda: None

    async def generate(self, request: SequenceRequest) -> AsyncGenerator[SequenceOutput, None]:
        async with aclosing(super().generate(request)) as outputs:
            async for output in outputs:
                if output.finish_reason and request.leg is not Leg.CONTEXT:
                    self.told()
                yield output


class Leaver(Asker):
    """A client that asks, and leaves so many turns of the loop after `count` was first called. `gone` is set when it has."""

    def __init__(self, request: bytes, turns: int) -> None:
        super().__init__(request)
        self.gone = asyncio.Event()
        self._turns = turns

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set()

    def count(self) -> None:
        """One turn of the loop has passed."""
        if self._turns == 0:
            self._transport.abort()
        else:
            self._turns -= 1
            self._loop.call_soon(self.count)


def open_descriptors() -> int:
    """How many file descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


class Parts:
    """A gateway and its two workers, in this loop."""

    def __init__(self, engine: LastWord, gateway: str, workers: list[str]) -> None:
        self._engine = engine
        self._port = httpx2.URL(gateway).port or 80
        self._pages = [f"{url}/metrics" for url in (gateway, *workers)]

    async def ask(self, request: bytes, turns: int) -> bool:
        """One request, whose client leaves so many turns after the last token; whether it had its answer by then."""
        leaver = Leaver(request, turns)
        self._engine.told = leaver.count
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: leaver, "127.0.0.1", self._port)
        await leaver.gone.wait()
        return leaver.complete

    async def footprint(self) -> dict[str, float]:
        """Everything that is open in any part, and the descriptors of all of them."""
        async with httpx2.AsyncClient() as client:
            text = "".join([(await client.get(page)).text for page in self._pages])
        found = dict.fromkeys(GAUGES, 0.0)
        for line in text.splitlines():
            name = line.partition(" ")[0].partition("{")[0]
            if name in found:
                found[name] += float(line.rpartition(" ")[2])
        return found | {"descriptors": float(open_descriptors())}

    async def until_as_before(self, before: dict[str, float]) -> None:
        """Wait until nothing is open that was not before, or fail and name it."""
        give_up = asyncio.get_running_loop().time() + SETTLE_SECONDS
        while more := {name: now for name, now in (await self.footprint()).items() if now > before[name]}:
            assert asyncio.get_running_loop().time() < give_up, more


@asynccontextmanager
async def parts(link: str) -> AsyncIterator[Parts]:
    """All of them, while the block is open."""
    channel = {"grpc_port": 0} if link == "grpc" else {}
    engine = LastWord()
    async with (
        serving(LastWord(), role="context", **channel) as context,
        serving(engine, role="generation", **channel) as generation,
        serving_gateway(context_worker=(context.url,), generation_worker=(generation.url,), link=link) as gateway,
    ):
        yield Parts(engine, gateway, [context.url, generation.url])


async def test_a_client_that_leaves_at_any_turn_around_the_end_leaves_nothing_behind(link: str) -> None:
    """Permits, load counts, requests, states, tasks and descriptors of all parts are back at their start."""
    requests = [request_of(chat("scripted", "[[text:fine]]", stream=stream)) for stream in (True, False)]
    async with parts(link) as all_parts:
        for request in requests:
            await all_parts.ask(request, 50 * TURNS)
        before = await all_parts.footprint()
        kinds = [(request, turns) for _ in range(ROUNDS) for request in requests for turns in range(TURNS)]
        complete = [await all_parts.ask(request, turns) for request, turns in kinds]
        await all_parts.until_as_before(before)

    assert set(complete) == {True, False}
