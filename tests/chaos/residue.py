"""What a fleet's processes hold: nothing once nobody asks anything, and no more tasks and descriptors than before."""

import asyncio
from collections.abc import Callable

from tests.chaos.processes import Fleet

OF_GATEWAY = ("in_flight", "waiting", "body_bytes", "worker_legs_in_flight")
OF_WORKER = ("in_flight", "states", "state_bytes")
SETTLE_SECONDS = 20.0
"""Idle connections to workers are closed after four seconds; the rest is slack."""


def held(fleet: Fleet) -> dict[str, float]:
    """Everything that is open for a request somewhere: permits, load counts, requests at workers, states kept there."""
    found = {f"gateway {name}": fleet.gateway.metric(f"packrelay_gateway_{name}") for name in OF_GATEWAY}
    for role, worker in (("context", fleet.context), ("generation", fleet.generation)):
        found |= {f"{role} {name}": worker.metric(f"packrelay_worker_{name}") for name in OF_WORKER}
    return {name: value for name, value in found.items() if value}


def footprint(fleet: Fleet) -> dict[str, float]:
    """The descriptors of each process, and the gateway's tasks."""
    processes = {"context": fleet.context, "generation": fleet.generation, "gateway": fleet.gateway}
    descriptors = {f"{role} descriptors": float(process.descriptors) for role, process in processes.items()}
    return descriptors | {"gateway tasks": fleet.gateway.metric("packrelay_gateway_tasks")}


async def until_nothing_is_held(fleet: Fleet, seconds: float = SETTLE_SECONDS) -> None:
    """Every count of something open returns to zero, or this fails and names what does not."""
    await _until_empty(seconds, lambda: held(fleet))


async def until_as_before(fleet: Fleet, before: dict[str, float]) -> None:
    """The same, and every process is back at the footprint it had."""

    def left() -> dict[str, float]:
        now = footprint(fleet)
        return held(fleet) | {name: now[name] - count for name, count in before.items() if now[name] > count}

    await _until_empty(SETTLE_SECONDS, left)


async def _until_empty(seconds: float, left: Callable[[], dict[str, float]]) -> None:
    clock = asyncio.get_running_loop()
    give_up = clock.time() + seconds
    while still := await asyncio.to_thread(left):
        assert clock.time() < give_up, still
        await asyncio.sleep(0.1)  # Other processes hold it; asking again is all one can do.
