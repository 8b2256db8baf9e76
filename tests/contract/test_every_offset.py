"""A worker's connection is reset at every byte, over either link: through the whole gateway, each client gets exactly one end."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import count

import pytest

from tests.channel_rig import channel_worker
from tests.chaos.cutting_proxy import CuttingProxy, Direction
from tests.chaos.raw_client import Got, chat, post
from tests.contract.serving import serving_gateway
from tests.unit.links.raw_server import Peer, RawServer, chunked
from worker.engines.scripted import create

MODELS = json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode()
EVENTS = [b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a b"}}]}\n\n', b"data: [DONE]\n\n"]
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(*EVENTS)
WHOLE_BODY = b'{"id":"c","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"a"}}]}'


def with_length(body: bytes) -> bytes:
    """A JSON reply."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


WHOLE = with_length(WHOLE_BODY)
ANSWERS = {"/health": with_length(b"{}"), "/v1/models": with_length(MODELS)}
LOST = b'"code":"worker_lost"'
"""Whose fault it was: not the gateway's own."""
NOT_THERE = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class CutOff:
    """A worker that answers a chat with the first `offset` bytes of its reply, and resets the connection."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply
        self.offset = 0

    async def __call__(self, peer: Peer) -> None:
        """One connection."""
        while True:
            request = await peer.request()
            if request.line.startswith("POST"):
                await peer.send(self.reply[: self.offset])
                peer.reset()
                return
            await peer.send(ANSWERS.get(request.line.split(" ")[1], NOT_THERE))


@asynccontextmanager
async def gateway_before(cut_off: CutOff) -> AsyncIterator[str]:
    """A gateway that asks this worker once for each request."""
    async with RawServer(cut_off) as server, serving_gateway(worker=(server.url,), retries=0) as url:
        yield url


@pytest.mark.timeout(120)
async def test_a_stream_that_is_reset_at_any_byte_has_one_end() -> None:
    """An error status before the first event; after it what came whole, and one terminal: `[DONE]` only if it was all there."""
    cut_off = CutOff(STREAM)
    done_at = STREAM.index(EVENTS[1]) + len(EVENTS[1])
    async with gateway_before(cut_off) as url:
        for cut_off.offset in range(len(STREAM) + 1):
            async with asyncio.timeout(10):
                got = await post(url, chat("m", "hi", stream=True))

            assert got is not None
            assert (got.status, got.failed) == (502, True) or (got.status, got.terminals) == (200, 1), cut_off.offset
            assert got.failed is (LOST in got.body)
            assert cut_off.offset >= done_at or b"[DONE]" not in got.body
            assert got.status != 200 or got.body.startswith(EVENTS[0])


@pytest.mark.timeout(120)
async def test_a_whole_answer_that_is_reset_at_any_byte_is_an_error() -> None:
    """A client gets all of it, or the error object: never a part."""
    cut_off = CutOff(WHOLE)
    async with gateway_before(cut_off) as url:
        for cut_off.offset in range(len(WHOLE) + 1):
            async with asyncio.timeout(10):
                got = await post(url, chat("m", "hi"))

            assert got is not None
            assert LOST in got.body or (got.status == 200 and got.body == WHOLE_BODY and cut_off.offset == len(WHOLE))


SAID = "a relay"


@asynccontextmanager
async def gateway_before_channel() -> AsyncIterator[tuple[str, CuttingProxy]]:
    """A gateway that asks a worker once for each request, over a channel that can be cut."""
    async with (
        channel_worker(create(None, {"text": SAID})) as worker,
        CuttingProxy(worker.port) as proxy,
        serving_gateway(worker=(f"grpc://127.0.0.1:{proxy.port}",), retries=0) as url,
    ):
        yield url, proxy


async def asked_at_every_offset(direction: Direction, *, stream: bool) -> AsyncGenerator[tuple[bool, Got], None]:
    """What a client got whose channel was reset after so many bytes of one direction, and whether it was; until it no more was."""
    body = chat("scripted", "hi", stream=stream)
    async with gateway_before_channel() as (url, proxy):
        for offset in count():
            while (got := await post(url, body)) is None or got.status != 200:
                continue  # The channel of the turn before, whose end was not noticed yet.
            proxy.arm(direction, offset)
            async with asyncio.timeout(10):
                got = await post(url, body)
            assert got is not None
            cut = not proxy.disarm()
            yield cut, got
            if not cut:
                return


@pytest.mark.timeout(120)
@pytest.mark.parametrize("direction", Direction)
async def test_a_channel_that_is_reset_at_any_byte_ends_a_stream_once(direction: Direction) -> None:
    """An error status before the first event; after it what came whole, and one terminal: `[DONE]` only after all of the text."""
    statuses = set()
    async with aclosing(asked_at_every_offset(direction, stream=True)) as asked:
        async for cut, got in asked:
            statuses.add((got.status, got.failed))

            assert (got.status, got.failed) == (502, True) or (got.status, got.terminals) == (200, 1)
            assert got.status != 200 or SAID.startswith(got.text)
            assert got.failed or (got.text == SAID and got.body.endswith(b"data: [DONE]\n\n"))
            assert got.failed is (LOST in got.body)
            assert cut or not got.failed
    assert statuses >= {(502, True), (200, False)}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("direction", Direction)
async def test_a_channel_that_is_reset_at_any_byte_makes_a_whole_answer_an_error(direction: Direction) -> None:
    """A client gets all of it, or the error object: never a part."""
    statuses = set()
    async with aclosing(asked_at_every_offset(direction, stream=False)) as asked:
        async for cut, got in asked:
            statuses.add(got.status)

            assert (got.status, LOST in got.body) == (502, True) or (got.status, got.text) == (200, SAID)
            assert cut or got.status == 200
    assert statuses == {200, 502}
