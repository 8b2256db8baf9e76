"""Bodies of known length, which go past the parser once their head is read."""

import asyncio

import pytest

from gateway.links.base import BadReply, Deadlines, WorkerSilent
from gateway.links.connection import MAX_ERROR_BYTES
from tests.unit.links.exchange import HELLO, Connect, Serve, ask, open_stream
from tests.unit.links.raw_server import Peer, chunked, until

LARGE = b"x" * 700_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize("sizes", [(0,), (1, 1), (100_000,), (699_999,), (250_000, 250_000)])
async def test_a_body_in_any_pieces_is_one_body(serve: Serve, connect: Connect, sizes: tuple[int, ...]) -> None:
    """However it was cut, and the connection takes the next exchange."""
    link = None

    async def script(peer: Peer) -> None:
        for _ in range(3):
            await peer.request()
            pieces, rest = [HEAD % len(LARGE)], LARGE
            for size in sizes:
                pieces.append(rest[:size])
                rest = rest[size:]
            await peer.send(*(piece for piece in [*pieces, rest] if piece))
            await peer.request()
            await peer.send(HELLO)

    link = connect(await serve(script))
    for _ in range(3):
        assert (await ask(link)).body == LARGE
        assert (await ask(link)).body == b"hello"
    assert link.open_connections == 1


async def test_what_follows_a_body_is_nobodys_reply(serve: Serve, connect: Connect) -> None:
    """The body is whole; the connection is not used again."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD % len(LARGE) + LARGE[:100], LARGE[100:] + HELLO)

    link = connect(await serve(script))

    assert (await ask(link)).body == LARGE
    await until(lambda: link.open_connections == 0)


async def test_a_status_without_a_body_has_none_whatever_length_it_says(serve: Serve, connect: Connect) -> None:
    """A 204 ends with its head (RFC 9112, 6.3)."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n")
        await peer.request()
        await peer.send(HELLO)

    link = connect(await serve(script))

    assert (await ask(link)).status == 204
    assert (await ask(link)).body == b"hello"


async def test_a_repeated_head_does_not_get_past_the_limit(serve: Serve, connect: Connect) -> None:
    """A reply that need not be parsed may be as long as any other, and no longer."""

    async def script(peer: Peer) -> None:
        for size in (5, 10, 11):
            await peer.request()
            await peer.send(HEAD % size + b"x" * size)

    link = connect(await serve(script), max_reply_bytes=10)

    assert (await ask(link)).body == b"x" * 5
    assert (await ask(link)).body == b"x" * 10
    with pytest.raises(BadReply, match="more than 10 bytes"):
        await ask(link)


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_of_a_long_error_only_the_status_counts(serve: Serve, connect: Connect, framing: str) -> None:
    """Its body is not held, whatever its length; the connection goes on."""
    body = b"x" * (3 * MAX_ERROR_BYTES)
    head = b"HTTP/1.1 422 No\r\nContent-Length: %d\r\n\r\n" % len(body)
    chunked_head = b"HTTP/1.1 422 No\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head + body if framing == "length" else chunked_head + chunked(body))
        await peer.request()
        await peer.send(HELLO)

    link = connect(await serve(script), max_reply_bytes=4 * MAX_ERROR_BYTES)
    reply = await ask(link)

    assert (reply.status, len(reply.body) <= MAX_ERROR_BYTES) == (422, True)
    assert (await ask(link)).body == b"hello"


async def test_an_error_without_an_end_is_a_bad_reply(serve: Serve, connect: Connect) -> None:
    """What is not kept is counted."""
    body = b"x" * 100_000

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await peer.send(b"%x\r\n%b\r\n" % (len(body), body))

    link = connect(await serve(script), max_reply_bytes=2 * MAX_ERROR_BYTES)

    with pytest.raises(BadReply, match="more than"):
        await ask(link)


async def test_a_streamed_request_whose_error_stalls_is_bounded_by_its_silence(serve: Serve, connect: Connect) -> None:
    """The reply is no stream, and yet the idle deadline counts from its head on."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 500 No\r\nContent-Length: 10\r\n\r\nhalf ")
        await asyncio.Event().wait()

    link = connect(await serve(script))
    stream = await open_stream(link, Deadlines(connect=5, first_byte=100, idle=0.05, total=200))
    with pytest.raises(WorkerSilent, match="fell silent"):
        await asyncio.wait_for(stream.body(), 10)
    stream.close()
