"""SSE over the HTTP link: whole events, exactly one end, and back-pressure."""

import asyncio
import json
import re

import pytest

from gateway.links import connection as connection_module
from gateway.links.base import BadReply, Deadlines, WorkerLost
from gateway.links.connection import HIGH_WATER_BYTES
from tests.unit.links.exchange import (
    DONE,
    METRICS,
    ROLE,
    SSE_HEAD,
    STOCK_ERROR,
    STREAM,
    TOKEN,
    Connect,
    Drain,
    Serve,
    open_stream,
    read_until_failure,
)
from tests.unit.links.raw_server import LAST_CHUNK, Peer, chunked, pass_time, replying, until


class TestStream:
    async def test_every_fragmentation_gives_the_same(self, serve: Serve, connect: Connect, drain: Drain) -> None:
        """A stream cut in two at any offset, or sent byte by byte, gives the same events."""
        cuts = [[STREAM[:at], STREAM[at:]] for at in range(1, len(STREAM))]
        cuts.append([STREAM[at : at + 1] for at in range(len(STREAM))])

        async def script(peer: Peer) -> None:
            for pieces in cuts:
                await peer.request()
                await peer.send(*pieces)

        link = connect(await serve(script))

        for _ in cuts:
            assert await drain(await open_stream(link)) == (ROLE + TOKEN + TOKEN + DONE, None)

    async def test_death_at_every_offset_gives_whole_events(self, serve: Serve, connect: Connect, drain: Drain) -> None:
        """A stream that dies anywhere gives whole events, every one that had arrived, and then WorkerLost unless it was over."""
        offsets = iter(range(len(SSE_HEAD), len(STREAM)))

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(STREAM[: next(offsets)])

        link = connect(await serve(script))

        for offset in range(len(SSE_HEAD), len(STREAM)):
            seen, error = await drain(await open_stream(link))
            arrived = [event for event in (ROLE, TOKEN, TOKEN) if event in STREAM[len(SSE_HEAD) : offset]]
            assert seen == b"" or seen.endswith(b"\n\n")
            assert (ROLE + TOKEN + TOKEN + DONE).startswith(seen)
            assert len(seen) >= sum(map(len, arrived[:1]))
            assert isinstance(error, WorkerLost) != seen.endswith(DONE)
            assert all(json.loads(data) for data in re.findall(rb"^data: (\{.*)$", seen, re.MULTILINE))

    async def test_death_before_the_head_is_a_loss(self, serve: Serve, connect: Connect) -> None:
        """A stream whose head never comes is WorkerLost."""
        with pytest.raises(WorkerLost):
            await open_stream(connect(await serve(replying(SSE_HEAD[:20]))))

    async def test_loss_comes_after_what_arrived(self, serve: Serve, connect: Connect) -> None:
        """Events that arrived with the end of the connection are read before the loss is told, and it stays told."""

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(SSE_HEAD + b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN))

        server = await serve(script)
        link = connect(server)
        stream = await open_stream(link)
        await until(lambda: link.open_connections == 0)

        assert await stream.read() == TOKEN
        for _ in range(2):
            with pytest.raises(WorkerLost):
                await stream.read()
        stream.close()

    @pytest.mark.parametrize(
        "body",
        [
            chunked(TOKEN),
            chunked(TOKEN, b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'),
            chunked(TOKEN, b"data: [DONE]"),
            chunked(),
        ],
    )
    async def test_end_without_terminal_is_a_loss(
        self, serve: Serve, connect: Connect, body: bytes, drain: Drain
    ) -> None:
        """A stream that ends properly in HTTP but without `[DONE]` or an error record is WorkerLost."""
        _, error = await drain(await open_stream(connect(await serve(replying(SSE_HEAD + body)))))

        assert isinstance(error, WorkerLost)

    @pytest.mark.parametrize("at", range(0, len(METRICS + DONE), 20))
    async def test_what_follows_the_terminal_is_drained(self, serve: Serve, connect: Connect, at: int) -> None:
        """Stock metrics after `[DONE]` are cut, with it or after it, and the connection serves the next request at once."""
        extra = METRICS + DONE

        async def script(peer: Peer) -> None:
            while True:
                await peer.request()
                await peer.send(SSE_HEAD + chunked(TOKEN, DONE + extra[:at]).removesuffix(LAST_CHUNK))
                await terminal_read.wait()
                await peer.send(chunked(extra[at:]))

        server = await serve(script)
        link = connect(server)
        for _ in range(2):
            terminal_read = asyncio.Event()
            stream = await open_stream(link)
            seen = b""
            while piece := await stream.read():
                seen += piece
            assert seen == TOKEN + DONE
            terminal_read.set()
            await until(lambda: link.idle_connections == 1)
            stream.close()
        assert server.connections == 1

    @pytest.mark.interpreted
    @pytest.mark.parametrize(("name", "value"), [("DRAIN_SECONDS", 0.05), ("DRAIN_BYTES", 10)])
    async def test_endless_trailer_is_cut_off(
        self, serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, name: str, value: float, drain: Drain
    ) -> None:
        """A worker that does not end its reply after the terminal, in time or in size, loses the connection."""
        monkeypatch.setattr(connection_module, name, value)

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(SSE_HEAD + chunked(TOKEN + DONE).removesuffix(LAST_CHUNK))
            if name == "DRAIN_BYTES":
                await terminal_read.wait()
                await peer.send(chunked(METRICS).removesuffix(LAST_CHUNK))
            await peer.gone()

        terminal_read = asyncio.Event()
        server = await serve(script)

        assert await drain(await open_stream(connect(server))) == (TOKEN + DONE, None)
        terminal_read.set()
        await asyncio.wait_for(server.finished.wait(), 0.9)

    async def test_error_record_ends_the_stream(self, serve: Serve, connect: Connect, drain: Drain) -> None:
        """A stock error record is the terminal: it is relayed as the OpenAI object, without the `[DONE]` after it."""
        link = connect(await serve(replying(SSE_HEAD + chunked(TOKEN, STOCK_ERROR + DONE))))

        seen, error = await drain(await open_stream(link))

        assert error is None
        assert json.loads(seen.removeprefix(TOKEN + b"data: ")) == {
            "error": {"message": "Out of memory.", "type": "server_error", "param": None, "code": None}
        }

    async def test_refusal_is_read_as_a_body(self, serve: Serve, connect: Connect) -> None:
        """A worker that answers a stream with an error status gives status, headers and body as they are."""
        body = b'{"error":"[DONE] is not a role"}'
        reply = b"HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
            len(body),
            body,
        )
        link = connect(await serve(replying(reply)))

        stream = await open_stream(link)

        assert (stream.status, stream.headers["content-type"]) == (400, "application/json")
        assert await stream.body() == body
        stream.close()

    async def test_oversize_body_is_a_bad_reply(self, serve: Serve, connect: Connect) -> None:
        """The body of a stream that is none is bounded as a call's is."""
        reply = b"HTTP/1.1 500 Bad\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"x" * 600, b"x" * 600)
        stream = await open_stream(connect(await serve(replying(reply)), max_reply_bytes=1000))

        with pytest.raises(BadReply):
            await stream.body()
        stream.close()

    async def test_reply_limit_is_not_a_streams(self, serve: Serve, connect: Connect, drain: Drain) -> None:
        """A stream may be longer than the limit of a reply that is read whole."""
        stream = await open_stream(connect(await serve(replying(STREAM)), max_reply_bytes=10))

        assert await drain(stream) == (ROLE + TOKEN + TOKEN + DONE, None)

    async def test_garbage_within_a_stream_is_a_bad_reply(self, serve: Serve, connect: Connect, drain: Drain) -> None:
        """Bytes that break HTTP in mid-stream fail it, after the events before them."""
        reply = SSE_HEAD + b"%x\r\n%b\r\nnonsense\r\n" % (len(TOKEN), TOKEN)

        seen, error = await drain(await open_stream(connect(await serve(replying(reply)))))

        assert seen == TOKEN
        assert isinstance(error, BadReply)


class TestBackPressure:
    async def test_late_reader_gets_all_that_is_here_in_one_read(self, serve: Serve, connect: Connect) -> None:
        """Events that came while nobody read are one read."""
        server = await serve(replying(SSE_HEAD + chunked(ROLE, TOKEN, TOKEN)))
        link = connect(server)
        stream = await open_stream(link)
        await until(lambda: link.idle_connections == 0 and link.open_connections == 0)

        assert await stream.read() == ROLE + TOKEN + TOKEN
        stream.close()

    async def test_stream_that_is_not_read_is_bounded(self, serve: Serve, connect: Connect, drain: Drain) -> None:
        """A worker that writes 64 MiB to a reader who does not read is stopped; reading gets every byte."""
        event = b"data: " + b"x" * 65_528 + b"\n\n"
        sent = 0

        async def script(peer: Peer) -> None:
            nonlocal sent
            await peer.request()
            await peer.send(SSE_HEAD)
            for _ in range(1024):
                await peer.send(b"%x\r\n%b\r\n" % (len(event), event))
                sent += 1
            await peer.send(chunked(DONE))

        stream = await open_stream(connect(await serve(script)))
        held = stream._connection
        assert held is not None
        await until(lambda: held._paused)
        await pass_time(0.05)

        assert held._unread <= 2 * HIGH_WATER_BYTES + 65_536
        assert sent < 512
        seen, error = await drain(stream)
        assert (len(seen), error) == (1024 * len(event) + len(DONE), None)

    async def test_late_reader_is_not_a_silent_worker(self, serve: Serve, connect: Connect, drain: Drain) -> None:
        """The idle deadline does not run while bytes are waiting for the reader."""
        first_read, both_sent, finish = asyncio.Event(), asyncio.Event(), asyncio.Event()
        begun = b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN)

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(SSE_HEAD + begun)
            await first_read.wait()
            await peer.send(begun)
            both_sent.set()
            await finish.wait()
            await peer.send(chunked(DONE))

        stream = await open_stream(connect(await serve(script)), Deadlines(first_byte=5, idle=0.1))
        assert await stream.read() == TOKEN
        first_read.set()
        await both_sent.wait()
        await pass_time(0.3)
        finish.set()

        assert await drain(stream) == (TOKEN + DONE, None)


class TestNullErrors:
    async def test_a_record_whose_error_is_null_is_no_error(self, serve: Serve, connect: Connect, drain: Drain) -> None:
        """A worker that writes every field of a record, `error` first, does not end its stream with the first one."""
        spelled = b'data: {"error":null,"choices":[{"delta":{"content":"hi"}}]}\n\n'
        link = connect(await serve(replying(SSE_HEAD + chunked(spelled, TOKEN, spelled, DONE))))
        stream = await open_stream(link)

        assert await drain(stream) == (spelled + TOKEN + spelled + DONE, None)
        assert not stream.failed

    async def test_an_error_record_fails_the_stream(self, serve: Serve, connect: Connect, drain: Drain) -> None:
        """Whoever reads it need not look into its bytes."""
        stream = await open_stream(connect(await serve(replying(SSE_HEAD + chunked(TOKEN, STOCK_ERROR, DONE)))))
        seen, error = await drain(stream)

        assert (seen.count(b"\n\n"), error, stream.failed) == (2, None, True)


class TestPassingOn:
    async def test_events_are_passed_on_without_being_read(self, serve: Serve, connect: Connect) -> None:
        """Each event reaches the taker as it comes; the terminal is left for a reader."""
        passed: list[bytes] = []

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(SSE_HEAD + chunked(ROLE)[: -len(LAST_CHUNK)])
            for number in range(1, 4):
                await peer.send(chunked(TOKEN)[: -len(LAST_CHUNK)])
                await until(lambda: len(passed) == number)  # noqa: B023  it is waited for at once
            await peer.send(chunked(DONE))

        def take(events: bytes) -> bool:
            passed.append(events)
            return True

        stream = await open_stream(connect(await serve(script)))
        assert await stream.read() == ROLE
        await stream.pass_on(take)

        assert passed == [TOKEN] * 3
        assert await stream.read() == DONE
        assert await stream.read() == b""
        stream.close()

    async def test_a_taker_that_has_enough_is_given_no_more(self, serve: Serve, connect: Connect) -> None:
        """Once it has answered False, events wait to be read."""
        passed: list[bytes] = []
        go_on = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(SSE_HEAD + chunked(ROLE)[: -len(LAST_CHUNK)])
            await go_on.wait()
            await peer.send(chunked(TOKEN)[: -len(LAST_CHUNK)])
            await until(lambda: bool(passed))
            await peer.send(chunked(TOKEN, DONE))

        def take(events: bytes) -> bool:
            passed.append(events)
            return False

        stream = await open_stream(connect(await serve(script)))
        assert await stream.read() == ROLE
        go_on.set()
        await stream.pass_on(take)

        assert passed == [TOKEN]
        assert await read_until_failure(stream) == (TOKEN + DONE, None)
        assert passed == [TOKEN]

    async def test_cancelling_ends_the_passing_on(self, serve: Serve, connect: Connect) -> None:
        """A reader that is cancelled while events are passed on gives nothing more to the taker."""
        passed: list[bytes] = []
        go_on = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(SSE_HEAD + chunked(ROLE)[: -len(LAST_CHUNK)])
            await go_on.wait()
            await peer.send(chunked(TOKEN + DONE))

        def take(events: bytes) -> bool:
            passed.append(events)
            return True

        stream = await open_stream(connect(await serve(script)))
        assert await stream.read() == ROLE
        passing = asyncio.create_task(stream.pass_on(take))
        await asyncio.sleep(0)
        passing.cancel()
        await asyncio.gather(passing, return_exceptions=True)
        go_on.set()

        assert await stream.read() == TOKEN + DONE
        assert passed == []
        stream.close()

    async def test_a_failure_before_the_passing_on_is_raised_by_reading(self, serve: Serve, connect: Connect) -> None:
        """When the worker goes while the client is waited for, passing on returns at once."""
        end = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(SSE_HEAD + chunked(ROLE)[: -len(LAST_CHUNK)])
            await end.wait()

        link = connect(await serve(script))
        stream = await open_stream(link)
        assert await stream.read() == ROLE
        end.set()
        await until(lambda: link.open_connections == 0)
        await stream.pass_on(lambda _: True)

        with pytest.raises(WorkerLost):
            await stream.read()
        stream.close()
