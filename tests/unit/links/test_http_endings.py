"""How exchanges with a worker end early: deadlines, cancellation, close."""

import asyncio

import pytest

from gateway.links.base import ConnectFailed, Deadlines, WorkerLost, WorkerSilent
from tests.unit.links.exchange import (
    DONE,
    HELLO,
    HELLO_CHUNKED,
    PATIENT,
    ROLE,
    SSE_HEAD,
    TOKEN,
    Connect,
    Serve,
    ask,
    open_stream,
    read_until_failure,
)
from tests.unit.links.raw_server import LAST_CHUNK, Peer, RawServer, Script, chunked, pass_time, turns, until


class TestDeadlines:
    @pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200", HELLO[:-1], HELLO_CHUNKED[:-3]])
    async def test_silence_within_a_call(self, serve: Serve, connect: Connect, said: bytes) -> None:
        """Silence before the head, within it or within the body is WorkerSilent, and the connection is ended."""
        server = await serve(self._silent_after(said))
        link = connect(server)

        with pytest.raises(WorkerSilent):
            await ask(link, Deadlines(first_byte=0.05, idle=0.05))
        await asyncio.wait_for(server.finished.wait(), 5)

    @pytest.mark.parametrize("said", [b"", b": ping\n\n", TOKEN[:9]])
    async def test_silence_before_the_first_event(self, serve: Serve, connect: Connect, said: bytes) -> None:
        """A stream that has a head but no event within `first_byte` is WorkerSilent; comments do not count as events."""
        server = await serve(self._silent_after(SSE_HEAD + chunked(said).removesuffix(LAST_CHUNK)))

        _, error = await read_until_failure(await open_stream(connect(server), Deadlines(first_byte=0.05, idle=30)))

        assert isinstance(error, WorkerSilent)
        await asyncio.wait_for(server.finished.wait(), 5)

    @pytest.mark.parametrize("tail", [b"", ROLE[:9]])
    async def test_silence_between_events(self, serve: Serve, connect: Connect, tail: bytes) -> None:
        """Silence for `idle` after an event is WorkerSilent, after what had arrived."""
        server = await serve(self._silent_after(SSE_HEAD + chunked(TOKEN + tail).removesuffix(LAST_CHUNK)))

        seen, error = await read_until_failure(await open_stream(connect(server), Deadlines(first_byte=30, idle=0.05)))

        assert seen == TOKEN
        assert isinstance(error, WorkerSilent)
        await asyncio.wait_for(server.finished.wait(), 5)

    async def test_every_piece_starts_the_idle_deadline_anew(self, serve: Serve, connect: Connect) -> None:
        """A reply that takes longer than `idle`, but is never silent for that long, is read to its end."""

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(SSE_HEAD)
            for _ in range(8):
                await peer.send(chunked(TOKEN).removesuffix(LAST_CHUNK))
                await pass_time(0.1)
            await peer.send(chunked(DONE))

        stream = await open_stream(connect(await serve(script)), Deadlines(first_byte=5, idle=0.5))

        assert await read_until_failure(stream) == (TOKEN * 8 + DONE, None)

    async def test_first_event_has_the_first_byte_deadline(self, serve: Serve, connect: Connect) -> None:
        """A stream may be silent for longer than `idle` before its first event, as prefill takes long."""
        prefilled = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(SSE_HEAD)
            await prefilled.wait()
            await peer.send(chunked(TOKEN, DONE))

        stream = await open_stream(connect(await serve(script)), Deadlines(first_byte=10, idle=0.05))
        asyncio.get_running_loop().call_later(0.2, prefilled.set)

        assert await read_until_failure(stream) == (TOKEN + DONE, None)

    async def test_total_ends_a_reply_that_goes_on(self, serve: Serve, connect: Connect) -> None:
        """A worker that never falls silent and never ends is stopped by `total`."""

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(SSE_HEAD)
            while True:
                await peer.send(b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN))
                await pass_time(0.01)

        stream = await open_stream(connect(await serve(script)), Deadlines(first_byte=5, idle=5, total=0.1))
        seen, error = await read_until_failure(stream)

        assert seen.startswith(TOKEN)
        assert isinstance(error, WorkerSilent)

    async def test_short_deadline_follows_a_long_one(self, serve: Serve, connect: Connect) -> None:
        """A connection that served a patient request keeps the deadline of an impatient one."""

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(HELLO)
            await peer.request()
            await peer.gone()

        link = connect(await serve(script))
        await ask(link, PATIENT)

        with pytest.raises(WorkerSilent):
            await ask(link, Deadlines(first_byte=0.05))

    @staticmethod
    def _silent_after(said: bytes) -> Script:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(said)
            await peer.gone()

        return script


class TestEnding:
    @pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200", HELLO[:-1]])
    async def test_cancelled_call_is_seen_by_the_worker(self, serve: Serve, connect: Connect, said: bytes) -> None:
        """Cancelling a call ends its connection at once."""
        asked, server = await self._waiting_worker(serve, said)
        link = connect(server)
        call = asyncio.ensure_future(ask(link))
        await asked.wait()
        call.cancel()

        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.finished.wait(), 1)

    async def test_cancelled_stream_is_seen_by_the_worker(self, serve: Serve, connect: Connect) -> None:
        """Cancelling a stream before its head ends its connection at once."""
        asked, server = await self._waiting_worker(serve, b"")
        opening = asyncio.ensure_future(open_stream(connect(server)))
        await asked.wait()
        opening.cancel()

        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.wait_for(server.finished.wait(), 1)

    async def test_cancelled_large_request_is_ended(self, serve: Serve, connect: Connect) -> None:
        """A frame that the worker does not read does not keep its connection open."""
        asked = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.head()
            asked.set()
            await asyncio.Event().wait()

        link = connect(await serve(script))
        call = asyncio.ensure_future(link.call("/x", bytes(32 << 20), {}, PATIENT))
        await asked.wait()
        call.cancel()

        await asyncio.wait([call])
        await until(lambda: link.open_connections == 0)

    async def test_closed_stream_is_seen_by_the_worker(self, serve: Serve, connect: Connect) -> None:
        """Closing a stream before its end ends the connection at once; a second close and a late read are harmless."""
        _, server = await self._waiting_worker(serve, SSE_HEAD + chunked(TOKEN).removesuffix(LAST_CHUNK))
        stream = await open_stream(connect(server))
        assert await stream.read() == TOKEN

        stream.close()
        stream.close()

        await asyncio.wait_for(server.finished.wait(), 1)
        with pytest.raises(WorkerLost):
            await stream.read()

    async def test_close_wakes_a_reader(self, serve: Serve, connect: Connect) -> None:
        """Whoever waits in `read` while the stream is closed is told."""
        _, server = await self._waiting_worker(serve, SSE_HEAD)
        stream = await open_stream(connect(server))
        reading = asyncio.ensure_future(stream.read())
        await turns()

        stream.close()

        with pytest.raises(WorkerLost):
            await reading

    async def test_closing_the_link_ends_everything(self, serve: Serve, connect: Connect) -> None:
        """Closing a link ends idle and busy connections; waiting callers get WorkerLost, later ones ConnectFailed."""
        asked, server = await self._waiting_worker(serve, b"")
        link = connect(server)
        call = asyncio.ensure_future(ask(link))
        await asked.wait()

        await link.close()
        await link.close()

        with pytest.raises(WorkerLost):
            await call
        with pytest.raises(ConnectFailed):
            await ask(link)

    @staticmethod
    async def _waiting_worker(serve: Serve, said: bytes) -> tuple[asyncio.Event, RawServer]:
        """A worker that has been asked, has said something, and waits to be left."""
        asked = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(said)
            asked.set()
            await peer.gone()

        return asked, await serve(script)
