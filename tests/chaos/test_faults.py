"""Workers that die, freeze and come back: every client hears the truth, once, and in time."""

import asyncio
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.processes import Fleet, Process, running
from tests.chaos.raw_client import Got, chat, post
from tests.chaos.residue import until_nothing_is_held

LONG_STREAM = "[[ttft_ms:10]] [[itl_ms:20]] [[tokens:2000]]"
SLOW_PREFILL = "[[ttft_ms:30000]]"
TEXT = " ".join(map(str, range(30)))
"""No part of it is there twice; a token is a byte of it."""
FAULTS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
"""What either worker suffers."""
PAUSE = 0.02
IN_TIME = 10.0
"""Seconds: ten times what a lost connection takes to be told, and a one-second deadline."""


def victim(fleet: Fleet, name: str) -> Process:
    """The worker a test is unkind to."""
    return fleet.context if name == "context" else fleet.generation


async def streaming(fleet: Fleet, script: str, **fields: Any) -> "asyncio.Task[Got | None]":
    """A stream whose first event is with the client."""
    begun = asyncio.Event()
    body = chat("scripted", script, stream=True, **fields)
    request = asyncio.create_task(post(fleet.gateway.url, body, begun=begun))
    await begun.wait()
    return request


async def until_prefilling(fleet: Fleet) -> None:
    """Return once the context leg is open."""
    async with asyncio.timeout(IN_TIME):
        while not await asyncio.to_thread(fleet.context.metric, "packrelay_worker_in_flight"):
            pass


async def assert_serves(fleet: Fleet) -> None:
    """Once the gateway says that it is ready, the very next request is answered. It may know a worker as down till then."""
    await fleet.gateway.until_healthy()
    answer = await post(fleet.gateway.url, chat("scripted", "[[text:fine]]"))

    assert answer is not None
    assert answer.status == 200, answer.body


async def assert_idle(fleet: Fleet) -> None:
    """Every count of something open returns to zero."""
    await until_nothing_is_held(fleet, IN_TIME)


async def test_generation_worker_killed_mid_stream_ends_the_stream_with_an_error(tmp_path: Path, link: str) -> None:
    """The client gets what was said, one error record and no `[DONE]`; a worker that comes back is used again."""
    async with running(tmp_path / "log", link=link) as fleet:
        request = await streaming(fleet, LONG_STREAM)
        fleet.generation.kill()
        killed_at = time.monotonic()
        got = await request

        assert got is not None
        assert (got.terminals, got.failed, b"[DONE]" in got.body) == (1, True, False)
        assert time.monotonic() - killed_at < IN_TIME
        await fleet.generation.start()
        await assert_serves(fleet)


@pytest.mark.parametrize("stream", [True, False])
async def test_context_worker_killed_in_prefill_is_a_json_error(tmp_path: Path, link: str, stream: bool) -> None:
    """Nothing was relayed yet, so the client gets a status and the error object, streamed or not."""
    async with running(tmp_path / "log", link=link) as fleet:
        request = asyncio.create_task(post(fleet.gateway.url, chat("scripted", SLOW_PREFILL, stream=stream)))
        await until_prefilling(fleet)
        fleet.context.kill()
        got = await request

        assert got is not None
        assert got.status in {502, 503}
        assert got.failed
        await fleet.context.start()
        await assert_serves(fleet)


@pytest.mark.parametrize("name", ["context", "generation"])
async def test_frozen_worker_is_noticed_by_its_deadline(tmp_path: Path, link: str, name: str) -> None:
    """A worker that is stopped, its sockets open, costs a client no more than the deadline."""
    async with running(tmp_path / "log", "--first-byte-timeout", "1", "--idle-timeout", "1", link=link) as fleet:
        victim(fleet, name).send(signal.SIGSTOP)
        asked_at = time.monotonic()
        got = await post(fleet.gateway.url, chat("scripted", "hello", stream=True))
        told_after = time.monotonic() - asked_at
        victim(fleet, name).send(signal.SIGCONT)

        assert got is not None
        assert got.status == 504
        assert told_after < IN_TIME
        await assert_serves(fleet)
        await assert_idle(fleet)


async def test_worker_frozen_mid_stream_ends_the_stream_with_an_error(tmp_path: Path, link: str) -> None:
    """Silence is an error record once the idle deadline has passed."""
    async with running(tmp_path / "log", "--idle-timeout", "1", link=link) as fleet:
        request = await streaming(fleet, LONG_STREAM)
        fleet.generation.send(signal.SIGSTOP)
        got = await request
        fleet.generation.send(signal.SIGCONT)

        assert got is not None
        assert (got.terminals, got.failed) == (1, True)


async def test_engine_that_dies_mid_stream_is_told_and_turns_unhealthy(tmp_path: Path, link: str) -> None:
    """The engine's death after three tokens is the client's error record, and the gateway's readiness."""
    async with running(tmp_path / "log", link=link) as fleet:
        script = f"[[itl_ms:500]] [[generation:die_after=3]] [[text:{TEXT}]]"
        got = await post(fleet.gateway.url, chat("scripted", script, stream=True))

        assert got is not None
        assert (got.terminals, got.failed, got.body.count(b"data: ") > 1) == (1, True, True)


async def test_lost_state_is_made_again_once(tmp_path: Path, link: str) -> None:
    """A hand-off that fails is tried afresh within the budget; when that fails too, the client is told what it was."""
    async with running(tmp_path / "log", link=link) as fleet:
        got = await post(fleet.gateway.url, chat("scripted", "[[lose_state=1]]"))

        assert got is not None
        assert got.status == 503
        assert b"handoff_failed" in got.body
        await assert_serves(fleet)


async def under_load(fleet: Fleet, flows: asyncio.Event, over: asyncio.Event) -> list[Got]:
    """Ten clients that ask for the text again and again, streamed and not, until it is over. `flows` is set by every success."""

    async def client(number: int) -> list[Got]:
        body = chat("scripted", f"[[ttft_ms:5]] [[itl_ms:2]] [[text:{TEXT}]]", stream=number % 2 == 0)
        answers = []
        while not over.is_set():
            got = await post(fleet.gateway.url, body)
            assert got is not None
            answers.append(got)
            if got.failed:
                await asyncio.sleep(PAUSE)  # As a client does before it tries again.
            else:
                flows.set()
        return answers

    return [got for answers in await asyncio.gather(*map(client, range(10))) for got in answers]


async def long_streams(fleet: Fleet, flows: asyncio.Event, begun: asyncio.Event, answers: list[Got]) -> None:
    """One client whose streams outlast the test, until it is cancelled. `begun` is set while there is one to be cut.

    After a cut it asks again when another client was answered.
    """
    body = chat("scripted", f"[[itl_ms:300]] [[text:{TEXT}]]", stream=True)
    while True:
        got = await post(fleet.gateway.url, body, begun=begun)
        assert got is not None
        begun.clear()
        answers.append(got)
        flows.clear()
        await flows.wait()


async def strike(worker: Process, fault: signal.Signals, seconds: float) -> None:
    """Kill a worker, or end it, or freeze it for so long; then it is there again."""
    if fault is signal.SIGKILL:
        worker.kill()
        await worker.start()
    elif fault is signal.SIGTERM:
        worker.send(fault)
        assert await asyncio.to_thread(worker.wait, IN_TIME) == 0
        await worker.start()
    else:
        worker.send(fault)
        await asyncio.sleep(seconds)  # That is how long it is frozen.
        worker.send(signal.SIGCONT)
        await worker.until_healthy()


@pytest.mark.timeout(120)
async def test_every_request_has_one_end_while_workers_are_killed(tmp_path: Path, link: str) -> None:
    """Either worker is killed, ended or frozen, again and again, under load: each request is answered, or told of an error, once.

    Every token is deterministic, so that none is lost or there twice: an answer is the whole text, and a cut stream an exact
    beginning of it.
    """
    dice = random.Random(3)
    limits = ("--first-byte-timeout", "1", "--idle-timeout", "1")
    async with running(tmp_path / "log", *limits, link=link) as fleet:
        flows, over, begun = asyncio.Event(), asyncio.Event(), asyncio.Event()
        load = asyncio.create_task(under_load(fleet, flows, over))
        ended: list[Got] = []
        long_load = asyncio.create_task(long_streams(fleet, flows, begun, ended))
        strikes = [(worker, fault) for worker in (fleet.context, fleet.generation) for fault in FAULTS]
        for worker, fault in dice.sample(strikes, len(strikes)):
            flows.clear()
            async with asyncio.timeout(IN_TIME):
                await flows.wait()
                await begun.wait()
            await asyncio.sleep(dice.uniform(0.05, 0.4))
            await strike(worker, fault, dice.uniform(0.1, 1.5))
        over.set()
        answers = await load + ended
        long_load.cancel()
        await assert_serves(fleet)
        await assert_idle(fleet)

    assert all(got.status for got in answers)
    assert all(got.terminals == 1 for got in answers if got.streamed)
    assert {got.text for got in answers if got.status == 200 and not got.failed} == {TEXT}
    cut = [got.text for got in answers if got.streamed and got.failed]
    assert cut
    assert all(TEXT.startswith(text) for text in cut)


async def test_termination_lets_streams_finish(tmp_path: Path, link: str) -> None:
    """SIGTERM to every process: a stream that fits in the grace time is complete, and all exit with status 0."""
    async with running(tmp_path / "log", link=link) as fleet:
        request = await streaming(fleet, "[[itl_ms:5]] [[tokens:100]]", max_tokens=100)
        for process in fleet.all:
            process.send(signal.SIGTERM)
        got = await request

        assert got is not None
        assert got.body.endswith(b"data: [DONE]\n\n")
        assert [process.wait(IN_TIME) for process in fleet.all] == [0, 0, 0]


async def test_grace_that_runs_out_ends_streams_with_an_error(tmp_path: Path, link: str) -> None:
    """What does not fit in the grace time gets a terminal error record, not a cut connection."""
    async with running(tmp_path / "log", grace="0.5", link=link) as fleet:
        request = await streaming(fleet, LONG_STREAM)
        fleet.gateway.send(signal.SIGTERM)
        got = await request

        assert got is not None
        assert (got.terminals, got.failed) == (1, True)
        assert fleet.gateway.wait(IN_TIME) == 0
