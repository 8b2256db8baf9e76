"""Clients that leave at the very moment their answer is complete: whoever wins that race, nothing stays behind."""

import asyncio
import random
import socket
from enum import Enum
from pathlib import Path

import pytest

from tests.chaos.cutting_proxy import RESET
from tests.chaos.processes import running
from tests.chaos.raw_client import Asker, chat, post, request_of
from tests.chaos.residue import footprint, until_as_before

CLIENTS = 16
PLACES = 8
"""Half of the clients wait for a permit that another one gives back, so permits change hands while clients leave."""
LOCAL_TOKENS = 25
"""Prompts up to this size (100 bytes) have no context leg."""
REQUESTS = 10_000


class Moment(Enum):
    """When a client leaves."""

    FIRST_BYTE = "first byte"
    """A short stream's end is microseconds away then; a whole answer has just been written."""
    END = "end"
    """The gateway is still putting the answer to its books."""
    GUESSED = "guessed"
    """When an answer like this is complete half of the time."""


class Aim:
    """How long an answer takes: what is too early half of the time, and too late the other half."""

    def __init__(self) -> None:
        self.seconds = 0.02

    def learn(self, complete: bool) -> None:
        """A client left after so long, with its answer complete or not."""
        self.seconds *= 0.97 if complete else 1.03


class Leaver(Asker):
    """A client that asks, and leaves at its moment; with a reset if it is rude. `left` is set when it has."""

    def __init__(self, request: bytes, moment: Moment, seconds: float, *, rude: bool) -> None:
        super().__init__(request)
        self.left: asyncio.Future[None] = self._loop.create_future()
        self._moment = moment
        self._seconds = seconds
        self._rude = rude
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._moment is Moment.GUESSED:
            self._timer = self._loop.call_later(self._seconds, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._moment is Moment.FIRST_BYTE or (self._moment is Moment.END and self.complete):
            if self._rude:
                self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.left.done():
            self.left.set_result(None)


def asking(stream: bool, alone: bool) -> bytes:
    """A request for a word; `alone` goes to the generation worker only."""
    padding = "" if alone else "x" * 4 * LOCAL_TOKENS
    return request_of(chat("scripted", f"[[text:fine]]{padding}", stream=stream))


async def come_and_go(port: int, leaver: Leaver) -> None:
    """From its connection to its end."""
    await asyncio.get_running_loop().create_connection(lambda: leaver, "127.0.0.1", port)
    await leaver.left


async def leave_again_and_again(port: int) -> int:
    """Every kind of request, every moment, ten thousand times; how many answers were complete when their client left."""
    kinds = [(stream, alone) for stream in (True, False) for alone in (True, False)]
    requests = {kind: asking(*kind) for kind in kinds}
    aims = {kind: Aim() for kind in kinds}
    complete = 0

    async def client(number: int) -> None:
        nonlocal complete
        dice = random.Random(number)
        for _ in range(REQUESTS // CLIENTS):
            kind, moment = dice.choice(kinds), dice.choice(list(Moment))
            leaver = Leaver(requests[kind], moment, aims[kind].seconds, rude=dice.random() < 0.5)
            await come_and_go(port, leaver)
            complete += leaver.complete
            if moment is Moment.GUESSED:
                aims[kind].learn(leaver.complete)

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return complete


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_ten_thousand_clients_that_leave_as_they_are_answered_leave_nothing_behind(
    tmp_path: Path, link: str
) -> None:
    """Permits, load counts, requests, states, tasks and descriptors are back at their start, and each request was counted once."""
    flags = ("--max-in-flight", str(PLACES), "--max-local-prefill-length", str(LOCAL_TOKENS))
    async with running(tmp_path / "log", *flags, link=link) as fleet:
        for _ in range(10):
            await post(fleet.gateway.url, chat("scripted", "[[text:warm]]" + "x" * 4 * LOCAL_TOKENS))
        before = footprint(fleet)
        complete = await leave_again_and_again(fleet.gateway.port)
        await until_as_before(fleet, before)
        requests = "packrelay_gateway_requests_total"
        answered, gone = (
            fleet.gateway.metric(requests, endpoint="chat", outcome=outcome) for outcome in ("completed", "client_gone")
        )
        later = await post(fleet.gateway.url, chat("scripted", "[[text:fine]]"))

    assert answered + gone == 10 + REQUESTS
    # The race was run: each side won it often.
    assert min(complete, REQUESTS - complete, gone) > REQUESTS / 10
    assert later is not None
    assert later.text == "fine"
