"""A long mixed load with faults leaves everything as it was: `make soak` for ten minutes, a short run in `make ci`."""

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from tests.chaos.processes import Fleet, Process, running
from tests.chaos.raw_client import Got, chat, post

SECONDS = float(os.environ.get("SOAK_SECONDS", "5"))
"""How long each link is loaded."""
SETTLE_SECONDS = 20.0
CLIENTS = 12
MEBIBYTE = 1 << 20
GROWTH = 24 * MEBIBYTE
"""Memory that a process may have taken after it was warm: what is kept for reuse, never a share of the requests."""
KINDS = [
    ("[[ttft_ms:5]] [[itl_ms:1]] [[tokens:60]]", True),
    ("[[ttft_ms:5]] [[itl_ms:1]] [[tokens:60]]", False),
    ("[[text:short]]", False),
    ("[[generation:silence_after=3]]", True),
    ("[[raise_after=2]]", True),
    ("[[lose_state=1]]", False),
    ("x" * 100_000, False),
]


async def one_request(fleet: Fleet, dice: random.Random) -> Got | None:
    """Any kind of request; one in four clients leaves at a random moment, and all leave what never ends."""
    script, stream = dice.choice(KINDS)
    leaves = dice.random() < 0.25 or "silence" in script
    leave_after = dice.uniform(0.0, 0.3) if leaves else None
    return await post(fleet.gateway.url, chat("scripted", script, stream=stream, max_tokens=60), leave_after)


async def load(fleet: Fleet, seconds: float) -> list[Got]:
    """So many seconds of it; what the clients that stayed got."""
    until = time.monotonic() + seconds
    answers: list[Got] = []

    async def client(number: int) -> None:
        dice = random.Random(number)
        while time.monotonic() < until:
            got = await one_request(fleet, dice)
            if got is not None:
                answers.append(got)

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return answers


def held(fleet: Fleet) -> dict[str, float]:
    """Everything that is open somewhere."""
    gateway = ("in_flight", "waiting", "body_bytes", "worker_legs_in_flight")
    worker = ("in_flight", "states", "state_bytes")
    found = {name: fleet.gateway.metric(f"packrelay_gateway_{name}") for name in gateway}
    for process in (fleet.context, fleet.generation):
        found |= {f"{process.port} {name}": process.metric(f"packrelay_worker_{name}") for name in worker}
    return {name: value for name, value in found.items() if value}


async def settled(fleet: Fleet) -> dict[Process, tuple[int, float]]:
    """Wait until nothing is open; then the descriptors of each process, and the gateway's tasks."""
    async with asyncio.timeout(SETTLE_SECONDS):
        while await asyncio.to_thread(held, fleet):  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(0.1)  # Other processes hold it.
    await asyncio.sleep(5.0)  # Idle connections are closed after four.
    tasks = await asyncio.to_thread(fleet.gateway.metric, "packrelay_gateway_tasks")
    return {process: (process.descriptors, tasks if process is fleet.gateway else 0) for process in fleet.all}


@pytest.mark.slow
@pytest.mark.timeout(120 + 2 * SECONDS)
async def test_a_long_load_leaves_everything_as_it_was(tmp_path: Path, link: str) -> None:
    """Permits, load counts, states, descriptors and tasks are back to their start, memory is flat, each answer had one end."""
    async with running(tmp_path / "log", link=link) as fleet:
        await load(fleet, min(4.0, SECONDS))
        before, memory = await settled(fleet), {process: process.resident_bytes for process in fleet.all}
        answers = await load(fleet, SECONDS)
        after = await settled(fleet)
        grown = [process.resident_bytes - memory[process] for process in fleet.all]

    assert all(got.status for got in answers)
    streams = [got for got in answers if got.status == 200 and b"data: " in got.body]
    assert streams
    assert {got.terminals for got in streams} == {1}
    for process, (descriptors, tasks) in after.items():
        assert descriptors <= before[process][0] + 4
        assert tasks <= before[process][1] + 2
    assert max(grown) < GROWTH, grown
