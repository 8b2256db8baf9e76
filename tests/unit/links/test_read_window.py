"""The read window: which streams wait for its end, and what it changes about their bytes."""

import asyncio

import pytest

from gateway.links.read_window import ReadWindow
from tests.unit.links.exchange import DONE, SSE_HEAD, Connect, Serve, open_stream, read_until_failure
from tests.unit.links.raw_server import Peer, chunked

EVENT = b'data: {"choices":[]}\n\n'


@pytest.mark.parametrize(("gap", "fast"), [(0.0, True), (0.0019, True), (0.0021, False), (0.033, False)])
def test_a_stream_is_fast_below_two_windows(gap: float, fast: bool) -> None:
    """Pieces less than two windows apart make a fast stream."""
    assert ReadWindow(0.001).is_fast(10.0, 10.0 + gap) is fast


def test_no_window_makes_no_stream_wait() -> None:
    """With 0 everything is relayed as it comes."""
    assert not ReadWindow(0.0).is_fast(10.0, 10.0)


async def test_one_window_ends_for_all() -> None:
    """Everybody who waits is called once, together."""
    window, called = ReadWindow(0.001), asyncio.Queue[str]()
    window.at_end(lambda: called.put_nowait("first"))
    window.at_end(lambda: called.put_nowait("second"))

    async with asyncio.timeout(5):
        assert [await called.get(), await called.get()] == ["first", "second"]
    assert called.empty()


async def test_a_fast_stream_loses_nothing(serve: Serve, connect: Connect) -> None:
    """Two hundred events written one by one are the same bytes, in fewer pieces."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(SSE_HEAD)
        for _ in range(200):
            await peer.send(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
        await peer.send(chunked(DONE))

    stream = await open_stream(connect(await serve(script)))
    seen, error = await read_until_failure(stream)

    assert (seen, error) == (EVENT * 200 + DONE, None)
