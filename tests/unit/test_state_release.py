"""Aborts on their way to context workers."""

import asyncio
from collections.abc import Mapping

from gateway.links.base import Deadlines, Reply
from gateway.state_release import StateRelease
from tests.unit.fake_link import FakeLink, never, worker


class Deaf(FakeLink):
    """A link to a worker that does not answer."""

    async def call(self, _operation: str, _frame: object, _headers: Mapping[str, str], deadlines: Deadlines) -> Reply:
        """Ends when it is cancelled."""
        self.deadlines = deadlines
        self.was_asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError


async def test_closing_gives_up_what_takes_too_long() -> None:
    """A worker that does not answer holds up the end of the gateway for a moment only, whatever time its abort has."""
    context, _ = worker()
    context.link = link = Deaf(never)
    releases = StateRelease(patience=0.0)
    releases.release(context, "r")
    await link.was_asked.wait()
    await releases.close()

    assert link.cancelled == 1
    assert link.deadlines.total < 15


async def test_closing_without_aborts_does_nothing() -> None:
    """There is nothing to wait for."""
    await StateRelease().close()
