"""Connections to a worker: made, reused, given up, and retried once when the worker had closed them."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.links import connection as connection_module
from gateway.links.base import ConnectFailed, Deadlines, WorkerLost
from gateway.links.connection import Connection
from gateway.links.http import HttpLink
from gateway.links.read_window import ReadWindow
from gateway.spliced_frame import SplicedFrame
from tests.unit.links.exchange import (
    DONE,
    HELLO,
    PATIENT,
    ROLE,
    STREAM,
    TOKEN,
    Connect,
    Serve,
    ask,
    open_stream,
    read_until_failure,
)
from tests.unit.links.raw_server import Peer, RawServer, always, replying, turns, until

TLS_FILES = Path(__file__).parent / "tls"


class TestReuse:
    async def test_sequential_calls_share_one_connection(self, serve: Serve, connect: Connect) -> None:
        """Fifty calls one after the other, of every kind, need one connection."""
        server = await serve(always(HELLO))
        link = connect(server)

        for _ in range(20):
            await ask(link)
            await link.get("/health", PATIENT)
            stream = await open_stream(link)
            await stream.body()
            stream.close()

        assert (server.connections, link.open_connections, link.idle_connections) == (1, 1, 1)

    async def test_stream_gives_its_connection_back(self, serve: Serve, connect: Connect) -> None:
        """A stream read to its terminal leaves the connection for the next request."""
        server = await serve(always(STREAM))
        link = connect(server)

        for _ in range(5):
            assert await read_until_failure(await open_stream(link)) == (ROLE + TOKEN + TOKEN + DONE, None)
            await until(lambda: link.idle_connections == 1)

        assert server.connections == 1

    async def test_concurrent_calls_have_their_own(self, serve: Serve, connect: Connect) -> None:
        """As many connections exist as calls are in flight, and all of them are kept for the next ones."""
        server = await serve(always(HELLO))
        link = connect(server)

        for _ in range(3):
            await asyncio.gather(*(ask(link) for _ in range(8)))

        assert (server.connections, link.idle_connections) == (8, 8)

    @pytest.mark.parametrize(
        "reply",
        [
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi, and more",
        ],
    )
    async def test_connection_that_cannot_be_trusted_is_not_reused(
        self, serve: Serve, connect: Connect, reply: bytes
    ) -> None:
        """After `Connection: close`, or bytes beyond the reply, the next call has a connection of its own."""
        server = await serve(always(reply))
        link = connect(server)

        assert [(await ask(link)).body for _ in range(2)] == [b"hi", b"hi"]
        assert server.connections == 2

    async def test_reply_that_overtook_its_request_ends_the_connection(self, serve: Serve, connect: Connect) -> None:
        """A refusal that comes before the frame was written is delivered, and the rest of the frame is not sent."""

        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            await peer.gone()

        link = connect(await serve(script))
        answer = await link.call("/x", bytes(32 << 20), {}, PATIENT)

        assert answer.status == 413
        assert link.idle_connections == 0

    async def test_bytes_nobody_asked_for_end_an_idle_connection(self, serve: Serve, connect: Connect) -> None:
        """A reply without a request is never taken for the next request's."""
        speak = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(HELLO)
            await speak.wait()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
            await peer.gone()

        link = connect(await serve(script), max_idle_seconds=60)
        await ask(link)
        speak.set()

        await until(lambda: link.open_connections == 0)

    async def test_idle_connection_is_closed_in_time(self, serve: Serve, connect: Connect) -> None:
        """A connection that was idle for the set time is closed by us, before the worker would do it."""

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(HELLO)
            await peer.gone()

        server = await serve(script)
        link = connect(server, max_idle_seconds=0.05)
        await asyncio.gather(ask(link), ask(link))

        await asyncio.wait_for(server.finished.wait(), 5)
        await until(lambda: link.open_connections == 0)

    async def test_expired_connection_is_not_taken(self, serve: Serve, connect: Connect) -> None:
        """A connection idle for too long is not used even if nobody came by to close it."""
        server = await serve(always(HELLO))
        link = connect(server, max_idle_seconds=0)

        await ask(link)
        await ask(link)

        assert server.connections == 2

    async def test_idle_connection_closed_by_the_worker_is_forgotten(self, serve: Serve, connect: Connect) -> None:
        """The next call after the worker closed the connection dials, and nothing is retried."""
        server = await serve(replying(HELLO))
        link = connect(server)

        for count in (1, 2):
            assert (await ask(link)).body == b"hello"
            await until(lambda: link.open_connections == 0)
            assert server.connections == count


class TestKeepAliveRace:
    async def test_race_is_retried_once(self, serve: Serve, connect: Connect) -> None:
        """A request on a reused connection that dies before a byte of the reply is sent again on a new one."""
        lines = []

        async def script(peer: Peer) -> None:
            for _ in range(2 if peer.number == 1 else 1):
                lines.append((peer.number, (await peer.request()).line))
                if len(lines) != 2:
                    await peer.send(HELLO)

        link = connect(await serve(script))

        assert [(await ask(link)).body for _ in range(2)] == [b"hello", b"hello"]
        assert [number for number, _ in lines] == [1, 1, 2]

    async def test_second_death_is_a_loss(self, serve: Serve, connect: Connect) -> None:
        """A new connection that dies too is WorkerLost: there is one retry and no more."""

        async def script(peer: Peer) -> None:
            if peer.number == 1:
                await peer.request()
                await peer.send(HELLO)
            await peer.request()

        server = await serve(script)
        link = connect(server)
        await ask(link)

        with pytest.raises(WorkerLost):
            await ask(link)
        assert server.connections == 2

    async def test_failing_to_dial_again_is_a_loss(self, serve: Serve, connect: Connect) -> None:
        """After the race the worker may have had the request, so a refused dial is WorkerLost and not ConnectFailed."""

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(HELLO)
            await peer.request()
            server.stop_listening()

        server = await serve(script)
        link = connect(server)
        await ask(link)

        with pytest.raises(WorkerLost):
            await ask(link)

    async def test_death_after_a_byte_is_not_retried(self, serve: Serve, connect: Connect) -> None:
        """Once a byte of the reply is here, a death is the worker's."""
        server = await serve(replying(HELLO, b"HTTP/1.1 "))
        link = connect(server)
        await ask(link)

        with pytest.raises(WorkerLost):
            await ask(link)
        assert server.connections == 1

    @pytest.mark.interpreted
    async def test_late_death_is_not_retried(
        self, serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A reused connection that dies later than a race takes has lost its worker."""
        monkeypatch.setattr(connection_module, "KEEP_ALIVE_RACE_SECONDS", 0)
        server = await serve(replying(HELLO, b""))
        link = connect(server)
        await ask(link)

        with pytest.raises(WorkerLost):
            await ask(link)
        assert server.connections == 1


@pytest.fixture
def deaf_address() -> Iterator[str]:
    """A URL whose connections are neither accepted nor refused: its backlog is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        for filler in fillers:
            filler.close()


@pytest.mark.usefixtures("nothing_is_left")
class TestConnecting:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "no-such-host.invalid"])
    async def test_no_worker_is_connect_failed(self, host: str) -> None:
        """A refused connection and an unknown name are ConnectFailed."""
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            link = HttpLink(f"http://{host}:{unused.getsockname()[1]}")

            with pytest.raises(ConnectFailed):
                await ask(link)
        assert link.open_connections == 0

    async def test_slow_connect_is_connect_failed(self, deaf_address: str) -> None:
        """The connect deadline passes as ConnectFailed: nothing was delivered."""
        link = HttpLink(deaf_address)

        with pytest.raises(ConnectFailed):
            await ask(link, Deadlines(connect=0.05))
        assert link.open_connections == 0

    async def test_cancel_during_connect_leaves_nothing(self, deaf_address: str) -> None:
        """Cancelling a call that is still connecting ends the attempt."""
        link = HttpLink(deaf_address)
        call = asyncio.ensure_future(ask(link))
        await until(lambda: link.open_connections == 1)
        await turns()
        call.cancel()

        with pytest.raises(asyncio.CancelledError):
            await call
        assert link.open_connections == 0

    async def test_closing_the_link_does_not_wait_for_a_dial(self, deaf_address: str) -> None:
        """A link is closed at once while a call is still connecting, and the call fails when its dial does."""
        link = HttpLink(deaf_address)
        call = asyncio.ensure_future(ask(link, Deadlines(connect=0.1)))
        await until(lambda: link.open_connections == 1)

        await asyncio.wait_for(link.close(), 0.05)

        with pytest.raises(ConnectFailed):
            await call

    async def test_dial_that_ends_late_is_ended(self, serve: Serve) -> None:
        """A connection given up before it was made is ended as soon as it is."""

        async def script(peer: Peer) -> None:
            await peer.gone()

        server = await serve(script)
        link = HttpLink(server.url)
        connection = Connection(link._pool, "The worker", 1, ReadWindow())
        connection.abort()
        port = int(server.url.rpartition(":")[2])

        await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", port)

        await asyncio.wait_for(server.finished.wait(), 5)

    async def test_cancel_at_any_turn_leaves_nothing(self, serve: Serve, connect: Connect) -> None:
        """Whatever turn of the loop a call is cancelled in, no busy connection is left."""
        link = connect(await serve(always(HELLO)))

        for count in range(30):
            call = asyncio.ensure_future(ask(link))
            await turns(count)
            call.cancel()
            await asyncio.wait([call])
            await until(lambda: link.open_connections == link.idle_connections)

    async def test_tls_is_spoken(self) -> None:
        """An https URL is spoken to in TLS, in large pieces too, and the certificate is checked."""
        large = SplicedFrame([b"\xc6\x00\x40\x00\x00", memoryview(bytes(1 << 22))])
        server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_side.load_cert_chain(TLS_FILES / "localhost.crt", TLS_FILES / "localhost.key")
        trusting = ssl.create_default_context(cafile=str(TLS_FILES / "localhost.crt"))

        async with RawServer(always(STREAM), tls=server_side) as server:
            link, distrustful = HttpLink(server.url, ssl_context=trusting), HttpLink(server.url)
            for _ in range(2):
                stream = await link.stream("/v1/chat/completions", large, {}, PATIENT)
                assert await read_until_failure(stream) == (ROLE + TOKEN + TOKEN + DONE, None)
            with pytest.raises(ConnectFailed):
                await ask(distrustful)
            await link.close()
