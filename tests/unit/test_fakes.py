"""The stand-ins keep the contracts they stand for."""

import asyncio

import pytest

from tests.fakes import ControlledEngine, ManualClock
from worker.engines.base import EngineDead, Sampling, SequenceOutput, SequenceRequest

REQUEST = SequenceRequest(request_id="a", prompt=[1], sampling=Sampling(max_tokens=8))


async def said(engine: ControlledEngine) -> list[SequenceOutput]:
    """All outputs of one sequence."""
    return [output async for output in engine.generate(REQUEST)]


class TestControlledEngine:
    async def test_it_says_what_it_is_told(self) -> None:
        """An output is one token a byte; the finish ends the sequence."""
        engine = ControlledEngine()
        reading = asyncio.create_task(said(engine))
        (await engine.asked()).say("Hi", "stop")
        (output,) = await reading

        assert [token.data for token in output.tokens] == [b"H", b"i"]
        assert output.finish_reason == "stop"

    async def test_it_merges_for_a_late_reader(self) -> None:
        """What was said before it is read comes as one output, first and last fields kept."""
        engine = ControlledEngine()
        reading = asyncio.create_task(said(engine))
        sequence = await engine.asked()
        sequence.say("H", cached_tokens=3)
        sequence.say("i", "length", state=b"s")
        (output,) = await reading

        assert (output.cached_tokens, output.state, len(output.tokens)) == (3, b"s", 2)

    async def test_it_raises_what_it_is_told(self) -> None:
        """A failure comes after what was said before it."""
        engine = ControlledEngine()
        outputs = engine.generate(REQUEST)
        reading = asyncio.ensure_future(anext(outputs))
        sequence = await engine.asked()
        sequence.say("H")
        await reading
        sequence.fail(EngineDead("gone"))

        with pytest.raises(EngineDead, match="gone"):
            await anext(outputs)

    async def test_it_knows_when_it_was_closed(self) -> None:
        """Closing the generator and aborting are told apart."""
        engine = ControlledEngine()
        outputs = engine.generate(REQUEST)
        reading = asyncio.ensure_future(anext(outputs))
        sequence = await engine.asked()
        sequence.say("H")
        await reading
        await outputs.aclose()

        assert (sequence.closed.is_set(), sequence.aborts) == (True, 0)


def test_a_manual_clock_stands_still() -> None:
    """Time passes only when a test says so."""
    clock = ManualClock()
    before = clock()
    clock.advance(2.5)

    assert clock() - before == 2.5
