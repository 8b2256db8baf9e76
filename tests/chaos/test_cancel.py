"""Clients that leave at any moment leave nothing behind."""

import asyncio
import random
import time
from collections.abc import Iterator

import pytest

from tests.chaos.raw_client import chat, post
from tests.e2e.conftest import MODEL_MARKS
from tests.e2e.local_fleet import LocalFleet, local_fleet, one_worker, two_legs

LEFT_BEHIND = ["packrelay_worker_in_flight", "packrelay_worker_states", "packrelay_worker_state_bytes"]
SETTLE_SECONDS = 10.0


@pytest.fixture(scope="module", params=[two_legs, one_worker])
def fleet(request: pytest.FixtureRequest, link: str) -> Iterator[LocalFleet]:
    """A fleet of scripted workers, in either mode, over either link."""
    with local_fleet(*request.param("scripted", "--link", link)) as running:
        yield running


def assert_nothing_left(fleet: LocalFleet) -> None:
    """Every count of something open returns to zero, at the gateway and at each worker."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        left = {
            (url, name): value
            for url in fleet.workers.values()
            for name in LEFT_BEHIND
            if (value := fleet.metric(url, name))
        }
        if held := fleet.metric(fleet.url, "packrelay_gateway_worker_legs_in_flight"):
            left[fleet.url, "legs"] = held
        if not left:
            return
        assert time.monotonic() < deadline, left


async def leave_at_random(fleet: LocalFleet, model: str, count: int, longest: float, script: str) -> int:
    """Send this many requests, leave each at a random moment; answers how many were complete all the same."""
    dice = random.Random(7)
    at_once = asyncio.Semaphore(20)

    async def one(number: int) -> bool:
        async with at_once:
            body = chat(model, script, max_tokens=40, stream=number % 2 == 0)
            return await post(fleet.url, body, leave_after=dice.uniform(0, longest)) is not None

    return sum(await asyncio.gather(*(one(number) for number in range(count))))


@pytest.mark.timeout(120)
async def test_thousand_clients_that_leave_at_random_leave_nothing_behind(fleet: LocalFleet) -> None:
    """Before the context reply, between the legs, in the hand-off, before the first token, mid-stream: all is freed."""
    complete = await leave_at_random(fleet, "scripted", 1000, 0.2, "[[ttft_ms:20]] [[itl_ms:2]] [[tokens:40]]")

    assert complete < 1000
    await asyncio.to_thread(assert_nothing_left, fleet)


async def test_worker_hears_at_once_that_the_client_left(fleet: LocalFleet) -> None:
    """Also during a prefill that takes a minute, streamed or not; the hundred milliseconds have tenfold slack."""
    for stream in (True, False):
        await post(fleet.url, chat("scripted", "[[ttft_ms:60000]]", stream=stream), leave_after=0.3)
        left_at = time.monotonic()
        await asyncio.to_thread(assert_nothing_left, fleet)

        assert time.monotonic() - left_at < 10 * 0.1


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("mark", [pytest.param("", marks=MODEL_MARKS)])
async def test_clients_that_leave_the_real_model_leave_nothing_behind(mark: str) -> None:
    """Fifty clients of the real model through two legs, gone at any moment of prefill, hand-off and decode."""
    with local_fleet(*two_legs("llama_cpp")) as running:
        model = "SmolLM2-135M-Instruct"
        await leave_at_random(running, model, 50, 3.0, f"Tell me about the sea. {mark}" * 20)
        await asyncio.to_thread(assert_nothing_left, running)
        answer = await post(running.url, chat(model, "Hi", max_tokens=2))

        assert answer is not None
        assert answer.status == 200
