"""Every worker and every gateway is restarted in turn under load, and no client notices."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.chaos.processes import Process, worker_process
from tests.chaos.raw_client import Got, chat, post

TOKENS = 40
PAUSE = 0.02
IN_TIME = 20.0


class TwoOfEach:
    """Two context workers, two generation workers, two gateways: one of each may be missing."""

    def __init__(self, log: Path, link: str) -> None:
        self.contexts = [worker_process(log, "context", link) for _ in range(2)]
        self.generations = [worker_process(log, "generation", link) for _ in range(2)]
        legs = [flag for worker in self.contexts for flag in ("--context-worker", worker.url)]
        legs += [flag for worker in self.generations for flag in ("--generation-worker", worker.url)]
        flags = (*legs, "--link", link, "--internal-key", "chaos", "--grace", "10", "--retries", "2")
        self.gateways = [Process("gateway", log, *flags) for _ in range(2)]

    @property
    def workers(self) -> list[Process]:
        """All of them."""
        return [*self.contexts, *self.generations]


@asynccontextmanager
async def two_of_each(log: Path, link: str) -> AsyncIterator[TwoOfEach]:
    """The fleet, until the block is left."""
    fleet = TwoOfEach(log, link)
    try:
        await asyncio.gather(*(worker.start() for worker in fleet.workers))
        await asyncio.gather(*(gateway.start() for gateway in fleet.gateways))
        yield fleet
    finally:
        for process in (*fleet.workers, *fleet.gateways):
            process.end()


async def ask(fleet: TwoOfEach, first: int, stream: bool) -> Got | None:
    """As a load balancer does: the other gateway is asked when one does not listen, or says that it is shutting down."""
    body = chat(
        "scripted", f"[[ttft_ms:5]] [[itl_ms:2]] [[tokens:{TOKENS}]]", stream=stream, max_tokens=1000, temperature=0
    )
    got = None
    for turn in range(6):
        try:
            got = await post(fleet.gateways[(first + turn) % 2].url, body)
        except OSError:
            continue
        if got and b'"code":"shutting_down"' not in got.body:
            return got
    return got


def is_complete(got: Got | None, stream: bool) -> bool:
    """Whether a client has all of its answer: every token once, and one end."""
    if got is None or got.status != 200 or got.failed:
        return False
    if not stream:
        return bool(json.loads(got.body)["usage"]["completion_tokens"] == TOKENS + 1)  # The end is one too.
    return got.terminals == 1 and got.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_rolling_restart_loses_nothing(tmp_path: Path, link: str) -> None:
    """SIGTERM, wait, start again: each worker, then each gateway; every answer is whole, and every stream ends with `[DONE]`."""
    texts: set[str] = set()
    async with two_of_each(tmp_path / "log", link) as fleet:
        over, begun = asyncio.Event(), asyncio.Event()
        lost: list[Got | None] = []
        served = count()

        async def client(number: int) -> None:
            stream = number % 2 == 0
            while not over.is_set():
                got = await ask(fleet, number, stream)
                if not is_complete(got, stream):
                    lost.append(got)
                elif got and stream:
                    texts.add(got.text)  # The same for everybody: no token is missing, or there twice.
                if next(served) > 50:
                    begun.set()
                await asyncio.sleep(PAUSE)  # A steady load, not a flood: two cores run all of this.

        load = [asyncio.create_task(client(number), name=f"client-{number}") for number in range(8)]
        await begun.wait()
        for process in (*fleet.workers, *fleet.gateways):
            process.send(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, IN_TIME) == 0
            await process.start()
            await until_used(fleet)
        over.set()
        await asyncio.gather(*load)

    assert [(got.status, got.body[-300:]) if got else None for got in lost] == []
    assert len(texts) == 1


async def until_used(fleet: TwoOfEach) -> None:
    """Every gateway has found every worker: then the next one may go."""
    async with asyncio.timeout(IN_TIME):
        for gateway in fleet.gateways:
            while await asyncio.to_thread(gateway.metric, "packrelay_gateway_worker_up") < len(fleet.workers):  # noqa: ASYNC110
                await asyncio.sleep(PAUSE)  # It is another process that finds them.
