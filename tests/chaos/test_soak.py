"""A long mixed load with faults leaves everything as it was: `make soak` for ten minutes, a short run in `make ci`."""

import asyncio
import os
import random
import time
from itertools import count
from pathlib import Path

import pytest

from tests.chaos.processes import Fleet, running
from tests.chaos.raw_client import Got, chat, post
from tests.chaos.residue import footprint, until_as_before, until_nothing_is_held

SECONDS = float(os.environ.get("SOAK_SECONDS", "5"))
"""How long each link is loaded."""
IDLE_SECONDS = 5.0
"""Idle connections to workers are closed after four."""
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


async def load(fleet: Fleet, seconds: float, calls: int) -> list[Got]:
    """So many seconds of it, and so many calls at least; what the clients that stayed got."""
    until = time.monotonic() + seconds
    answers: list[Got] = []
    made = count(1)

    async def client(number: int) -> None:
        dice = random.Random(number)
        while next(made) <= calls or time.monotonic() < until:
            got = await one_request(fleet, dice)
            if got is not None:
                answers.append(got)

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return answers


async def settled(fleet: Fleet) -> dict[str, float]:
    """Wait until nothing is open, idle connections included; then the descriptors of each process, and the gateway's tasks."""
    await until_nothing_is_held(fleet)
    await asyncio.sleep(IDLE_SECONDS)
    return await asyncio.to_thread(footprint, fleet)


@pytest.mark.slow
@pytest.mark.timeout(120 + 2 * SECONDS)
async def test_a_long_load_leaves_everything_as_it_was(tmp_path: Path, link: str) -> None:
    """A thousand calls at least: permits, load counts, states, descriptors and tasks are back at their start, memory is flat.

    They are whole and streamed, they fail, and their clients leave; each answer had one end.
    """
    async with running(tmp_path / "log", link=link) as fleet:
        await load(fleet, min(4.0, SECONDS), 100)
        before, memory = await settled(fleet), [process.resident_bytes for process in fleet.all]
        answers = await load(fleet, SECONDS, 1000)
        await until_as_before(fleet, before)
        grown = [process.resident_bytes - size for process, size in zip(fleet.all, memory, strict=True)]

    assert all(got.status for got in answers)
    assert {got.terminals for got in answers if got.streamed} == {1}
    assert {got.failed for got in answers} == {True, False}
    assert max(grown) < GROWTH, grown
