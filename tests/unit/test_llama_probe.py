"""The probe of constraints, with a stand-in for its child: one that can be told to die, to be silent, or to talk nonsense."""

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

from worker.engines.base import Constraint, EngineDead, EngineRefused
from worker.engines.llama_cpp.probing import REMEMBERED, GrammarProbe, ProbeFailed

CHILD = """
import os, sys, time, msgspec
def say(data):
    sys.stdout.buffer.write(len(data).to_bytes(4, "little") + data)
    sys.stdout.buffer.flush()
say(b"READY")
while head := sys.stdin.buffer.read(4):
    text = msgspec.msgpack.decode(sys.stdin.buffer.read(int.from_bytes(head, "little")))["text"]
    if text == "die":
        os.abort()
    while text == "sleep":
        time.sleep(1)
    refused = {"gbnf": "", "reason": "It is bad."}
    say(msgspec.msgpack.encode(refused if text == "bad" else {"gbnf": f"{text} {os.getpid()}", "reason": ""}))
"""


def regex(text: str) -> Constraint:
    """A constraint; its text tells the child what to do."""
    return Constraint(kind="regex", text=text)


@pytest.fixture
async def probe() -> AsyncIterator[GrammarProbe]:
    """A probe with the stand-in as its child, which has a second for each constraint."""
    made = GrammarProbe([sys.executable, "-c", CHILD], seconds=1.0)
    yield made
    await made.close()


async def test_a_verdict_is_remembered(probe: GrammarProbe) -> None:
    """The same constraint is compiled once, good or bad; another one by the same child."""
    first = await probe.gbnf(regex("a"))

    assert await probe.gbnf(regex("a")) == first
    assert (await probe.gbnf(regex("b"))).split()[1] == first.split()[1]
    for _ in range(2):
        with pytest.raises(EngineRefused, match="It is bad"):
            await probe.gbnf(regex("bad"))


async def test_memory_is_bounded(probe: GrammarProbe) -> None:
    """Only so many verdicts are kept, the latest ones."""
    for number in range(REMEMBERED + 5):
        await probe.gbnf(regex(str(number)))

    assert len(probe._known) == REMEMBERED
    assert regex("4") not in probe._known


async def test_a_constraint_that_kills_is_refused_for_good(probe: GrammarProbe) -> None:
    """What the child does not survive is refused without a second try, and the next constraint gets a new child."""
    before = await probe.gbnf(regex("a"))
    with pytest.raises(EngineRefused, match="cannot be enforced"):
        await probe.gbnf(regex("die"))
    after = await probe.gbnf(regex("b"))
    with pytest.raises(EngineRefused):
        await probe.gbnf(regex("die"))

    assert after.split()[1] != before.split()[1]
    assert (await probe.gbnf(regex("c"))).split()[1] == after.split()[1]


async def test_a_constraint_that_takes_too_long_is_refused(probe: GrammarProbe) -> None:
    """At the deadline the child is ended, the constraint refused, and the next one is served."""
    with pytest.raises(EngineRefused, match="too long"):
        await probe.gbnf(regex("sleep"))

    assert await probe.gbnf(regex("a"))


async def test_a_child_that_died_idle_is_replaced(probe: GrammarProbe) -> None:
    """A child that somebody else ended costs nobody a request."""
    await probe.gbnf(regex("a"))
    assert probe._child is not None
    probe._child.kill()
    probe._child.wait()

    assert await probe.gbnf(regex("b"))


async def test_half_a_character_is_refused(probe: GrammarProbe) -> None:
    """A text that has no UTF-8 form is refused."""
    with pytest.raises(EngineRefused, match="half of a character"):
        await probe.gbnf(regex("\ud800"))


@pytest.mark.parametrize("program", ["", "print('hello there')", "raise SystemExit(1)"])
async def test_a_child_that_does_not_start_is_no_constraints_fault(program: str) -> None:
    """Then the request fails, and is not refused."""
    probe = GrammarProbe([sys.executable, "-c", program], seconds=1.0)

    with pytest.raises(ProbeFailed):
        await probe.gbnf(regex("a"))
    await probe.close()


async def test_closing_ends_what_waits(probe: GrammarProbe) -> None:
    """A verdict being made and those in line become EngineDead at once; afterwards there are none; closing twice is fine."""
    await probe.gbnf(regex("a"))
    waiting = [asyncio.create_task(probe.gbnf(regex(text))) for text in ("sleep", "b", "c")]
    await asyncio.sleep(0)  # Lets them line up.
    async with asyncio.timeout(0.9):
        await asyncio.gather(probe.close(), probe.close())

    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in ended] == [EngineDead] * 3
    with pytest.raises(EngineDead):
        await probe.gbnf(regex("d"))
