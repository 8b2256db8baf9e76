"""The gRPC link against scripted peers: what each way of ending means, and that one stream's trouble is its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from gateway.links.base import BadReply, ConnectFailed, Deadlines, LinkError, WorkerLost, WorkerSilent
from gateway.links.dialler import Pauses
from gateway.links.exchange import Heartbeat
from gateway.links.grpc import FAILURES, GrpcLink
from gateway.links.read_window import ReadWindow
from schemas.codec import encode_frame
from schemas.events import Delta, Event, Failed
from schemas.openai.errors import ErrorKind, ServingError
from schemas.pb.channel_pb2 import CANCEL, EVENTS, GOAWAY, KIND_UNSPECIFIED, PING, Frame
from tests.channel_rig import CHAT, PATIENT, chat_frame, open_stream, read_to_end
from tests.unit.links.raw_server import until
from tests.unit.links.scripted_channel import DONE, HELLO, STARTED, Peer, Script, scripted_channel

HEAD = b'data: {"id":"chatcmpl-r","object":"chat.completion.chunk","created":1700000000,"model":"fake","choices":[{"index":0,'
HELLO_RECORD = HEAD + b'"delta":{"role":"assistant","content":"hello"},"finish_reason":null}]}\n\n'
NAMED = {"X-Packrelay-Request-Id": "r"}
SHORT = 0.05

Connect = Callable[..., Awaitable[GrpcLink]]


@pytest.fixture
async def no_task_is_left() -> AsyncIterator[None]:
    """After the test there are no tasks that were not there before; gRPC keeps sockets of its own for the whole process."""
    tasks = asyncio.all_tasks()
    yield
    await until(lambda: asyncio.all_tasks() - tasks <= {asyncio.current_task()})


@pytest.fixture
async def connect(no_task_is_left: None) -> AsyncIterator[Connect]:
    """Starts a scripted channel and gives a link to it; both end with the test."""
    async with AsyncExitStack() as stack:

        async def start(script: Script, **settings: Any) -> GrpcLink:
            url = await stack.enter_async_context(scripted_channel(script))
            return await stack.enter_async_context(GrpcLink(url, **settings))

        yield start


async def answer_hello(peer: Peer) -> None:
    """Answer every request with one word, as fast as they come."""
    while True:
        number = await peer.opened()
        await peer.events((number, STARTED), (number, HELLO), (number, DONE))


async def fail_to_end(link: GrpcLink, deadlines: Deadlines = PATIENT) -> tuple[bytes, LinkError | None]:
    """What a stream gives, and what it fails with."""
    seen = b""
    stream = await open_stream(link, NAMED, deadlines)
    try:
        while piece := await stream.read():
            seen += piece
    except LinkError as error:
        return seen, error
    finally:
        stream.close()
    return seen, None


class TestStreams:
    async def test_events_become_the_records_of_http(self, connect: Connect) -> None:
        """A batch of events is read as whole SSE records with the request's id, and ends with [DONE]."""
        link = await connect(answer_hello)
        stream = await open_stream(link, NAMED)

        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert await read_to_end(stream) == HELLO_RECORD + b"data: [DONE]\n\n"

    async def test_usage_is_in_the_stream_if_it_was_asked_for(self, connect: Connect) -> None:
        """What the client wants to hear of usage is read out of its own frame."""
        link = await connect(answer_hello)
        stream = await open_stream(link, stream_options={"include_usage": True})

        assert b'"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1' in await read_to_end(stream)

    async def test_a_stream_that_is_closed_early_is_cancelled_once(self, connect: Connect) -> None:
        """Closing twice before the end sends one CANCEL, and other streams go on."""
        frames: asyncio.Queue[Frame] = asyncio.Queue()

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            await frames.put(await peer.receive())
            await peer.events((number, HELLO), (number, DONE))  # too late, and ignored
            await answer_hello(peer)

        link = await connect(script)
        stream = await open_stream(link)
        stream.close()
        stream.close()

        cancelled = await frames.get()
        assert (cancelled.kind, cancelled.stream) == (CANCEL, 1)
        assert b"[DONE]" in await read_to_end(await open_stream(link))

    async def test_cancelling_a_call_cancels_it_at_the_worker(self, connect: Connect) -> None:
        """A task that is cancelled while it waits for a reply sends CANCEL."""
        opened, cancelled = asyncio.Event(), asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.opened()
            opened.set()
            assert (await peer.receive()).kind == CANCEL
            cancelled.set()
            await peer.gone()

        link = await connect(script)
        task = asyncio.create_task(link.call(CHAT, chat_frame(), {}, PATIENT))
        await opened.wait()
        task.cancel()

        await asyncio.wait_for(cancelled.wait(), 5)
        assert link.exchange is not None
        assert link.exchange.open_streams == 0

    async def test_the_first_and_the_last_event_never_wait(self, connect: Connect) -> None:
        """Even with a window of a minute a stream begins at once and ends at once; only what lies between gathers."""

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            await peer.opened()  # another request: this one was read
            await peer.events((number, HELLO))
            await peer.events((number, DONE))
            await peer.gone()

        link = await connect(script, window=ReadWindow(60.0))
        stream = await open_stream(link, NAMED)
        first = await stream.read()
        other = asyncio.create_task(open_stream(link))
        rest = await asyncio.wait_for(read_to_end(stream), 5)
        other.cancel()

        assert first == HELLO_RECORD
        assert rest.endswith(b"data: [DONE]\n\n")

    async def test_a_reader_that_stands_still_holds_up_nobody(self, connect: Connect) -> None:
        """While one stream is not read and gets 20,000 deltas, another is served; the slow one then has every byte."""

        async def script(peer: Peer) -> None:
            slow, fast = await peer.opened(), await peer.opened()
            await peer.events((slow, STARTED), (slow, HELLO), (fast, STARTED), (fast, HELLO))
            for _ in range(200):
                await peer.events(*[(slow, Delta(text="~", tokens=1))] * 100)
            await peer.events((fast, DONE))
            await peer.events((slow, DONE))
            await peer.gone()

        link = await connect(script)
        slow, fast = await asyncio.gather(open_stream(link), open_stream(link))

        assert (await read_to_end(fast)).endswith(b"[DONE]\n\n")
        text = await read_to_end(slow)
        assert text.count(b"~") == 20_000
        assert text.count(b"data: ") < 300

    async def test_the_last_failure_of_a_worker_is_cleaned(self, connect: Connect) -> None:
        """A Failed event ends the stream with an error record that names no host, and no [DONE] follows."""

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            failed = {"type": "failed", "kind": "internal", "message": "It broke. See http://gpu-7:8001/trace."}
            batch = [[number, STARTED], [number, HELLO], [number, failed]]
            await peer.send(Frame(kind=EVENTS, payload=encode_frame(batch)))
            await peer.gone()

        seen = await read_to_end(await open_stream(await connect(script), NAMED))

        assert seen.startswith(HELLO_RECORD)
        assert b'"error":{"message":"It broke."' in seen
        assert b"gpu-7" not in seen
        assert b"[DONE]" not in seen

    async def test_a_stream_that_fails_before_it_begins_has_a_status(self, connect: Connect) -> None:
        """A worker whose first event is Failed is answered for as over HTTP: with a status, so that it can be retried."""

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            failed = {"type": "failed", "kind": "unavailable", "message": "Busy."}
            await peer.send(Frame(kind=EVENTS, payload=encode_frame([[number, failed]])))
            await peer.gone()

        stream = await open_stream(await connect(script))

        assert stream.status == 503
        assert b'"Busy."' in await stream.body()

    async def test_newer_events_are_skipped_and_counted(self, connect: Connect) -> None:
        """An event with an unknown tag costs only itself."""

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            batch = [[number, STARTED], [number, {"type": "mood", "good": True}], [number, HELLO], [number, DONE]]
            await peer.send(Frame(kind=EVENTS, payload=encode_frame(batch)))
            await peer.send(Frame(kind=KIND_UNSPECIFIED))
            await peer.gone()

        link = await connect(script)

        assert await read_to_end(await open_stream(link, NAMED)) == HELLO_RECORD + b"data: [DONE]\n\n"
        assert link.skipped_events == 1

    async def test_a_newer_end_ends_its_stream_at_once(self, connect: Connect) -> None:
        """An unknown event that says it is the last is an error record without [DONE]; nobody waits for another, nor cancels."""

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            batch = [[number, STARTED], [number, HELLO], [number, {"type": "curtain", "last": True}]]
            await peer.send(Frame(kind=EVENTS, payload=encode_frame(batch)))
            await answer_hello(peer)

        link = await connect(script)
        seen = await read_to_end(await open_stream(link, NAMED))

        assert seen.startswith(HELLO_RECORD + b'data: {"error":')
        assert b'"code":"unknown_end"' in seen
        assert b"[DONE]" not in seen
        assert await read_to_end(await open_stream(link, NAMED)) == HELLO_RECORD + b"data: [DONE]\n\n"

    async def test_what_is_said_after_the_end_is_dropped(self, connect: Connect) -> None:
        """A stream has one end: what a worker adds to it, in the same message even, reaches nobody."""

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            failed = Failed(kind=ErrorKind.INTERNAL, message="See http://gpu-7:8001.")
            await peer.events((number, STARTED), (number, HELLO), (number, DONE), (number, HELLO), (number, failed))
            await peer.events((number, HELLO))
            await peer.gone()

        assert await read_to_end(await open_stream(await connect(script), NAMED)) == HELLO_RECORD + b"data: [DONE]\n\n"

    async def test_the_count_of_skipped_events_outlives_a_channel(self, connect: Connect) -> None:
        """What was skipped before a channel was lost still counts when there is another."""

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            batch = [[number, STARTED], [number, {"type": "mood"}], [number, HELLO], [number, DONE]]
            await peer.send(Frame(kind=EVENTS, payload=encode_frame(batch)))

        link = await connect(script)
        for _ in range(2):
            await read_to_end(await open_stream(link, NAMED))
            await until(lambda: link.exchange is None)

        assert (link.dials, link.skipped_events) == (2, 2)


class TestReplies:
    async def test_a_reply_is_json_as_over_http(self, connect: Connect) -> None:
        """The msgpack of a REPLY reaches a caller who does not accept it as JSON, with the worker's status."""

        async def script(peer: Peer) -> None:
            await peer.reply(await peer.opened(), {"choices": [], "new": 1.5}, status=200)
            await peer.reply(await peer.opened(), {"error": {"message": "No."}}, status=429)
            await peer.gone()

        link = await connect(script)
        first = await link.call(CHAT, chat_frame(), {}, PATIENT)
        second = await open_stream(link)

        assert (first.status, first.body) == (200, b'{"choices":[],"new":1.5}')
        assert first.headers["content-type"] == "application/json"
        assert (second.status, await second.body()) == (429, b'{"error":{"message":"No."}}')

    async def test_a_caller_who_accepts_msgpack_gets_it(self, connect: Connect) -> None:
        """A context leg's reply is passed on as it came."""

        async def script(peer: Peer) -> None:
            await peer.reply(await peer.opened(), {"choices": []})
            await peer.gone()

        reply = await (await connect(script)).call(CHAT, chat_frame(), {"accept": "application/msgpack"}, PATIENT)

        assert reply.body == encode_frame({"choices": []})
        assert reply.headers["content-type"] == "application/msgpack"

    async def test_a_frame_above_the_limit_is_not_sent(self, connect: Connect) -> None:
        """It is answered 413 with the error object, as the worker would, and no connection is made for it."""
        link = await connect(answer_hello, max_frame_bytes=100)
        stream = await link.stream(CHAT, b"x" * 101, {}, PATIENT)

        assert (stream.status, link.dials) == (413, 0)
        assert b'"code":"body_too_large"' in await stream.body()

    async def test_a_worker_that_goes_away_finishes_what_it_has(self, connect: Connect) -> None:
        """After GOAWAY new requests are answered 503 here, and the open stream is read to its end."""
        more = asyncio.Event()

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            await peer.send(Frame(kind=GOAWAY))
            await more.wait()
            await peer.events((number, DONE))
            await peer.gone()

        link = await connect(script)
        stream = await open_stream(link, NAMED)
        await until(lambda: link.exchange is not None and link.exchange.draining)
        refused = await link.call(CHAT, chat_frame(), {}, PATIENT)
        more.set()

        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert await read_to_end(stream) == HELLO_RECORD + b"data: [DONE]\n\n"


class TestBrokenPeers:
    @pytest.mark.parametrize(
        "payload", [b"\xc1", b"", encode_frame({"a": 1}), encode_frame([[1, {"type": "delta", "text": 5}]])]
    )
    async def test_a_batch_that_is_none_ends_the_channel(self, connect: Connect, payload: bytes) -> None:
        """All streams of the channel fail with BadReply, after what had arrived; the next request has a new channel."""
        calls = 0

        async def script(peer: Peer) -> None:
            nonlocal calls
            calls += 1
            if calls > 1:
                await answer_hello(peer)
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            await peer.send(Frame(kind=EVENTS, payload=payload))
            await peer.gone()

        link = await connect(script)
        seen, failure = await fail_to_end(link)

        assert (seen, type(failure)) == (HELLO_RECORD, BadReply)
        assert b"[DONE]" in (await fail_to_end(link))[0]

    async def test_a_message_that_is_no_frame_ends_the_channel(
        self, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Bytes that protobuf cannot read are a broken peer, not a lost one."""

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            await peer.send_bytes(b"\xff\xff\xff")
            await peer.gone()

        seen, failure = await fail_to_end(await connect(script))

        assert (seen, type(failure)) == (HELLO_RECORD, BadReply)

    @pytest.mark.parametrize("code", list(FAILURES), ids=lambda code: code.name)
    async def test_every_status_is_one_of_ours(self, connect: Connect, code: grpc.StatusCode) -> None:
        """However the worker ends the rpc, CANCELLED included, its streams fail with the table's error and no task is cancelled."""

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            if code is not grpc.StatusCode.OK:
                await peer.end(code)

        seen, failure = await fail_to_end(await connect(script))

        assert (seen, type(failure)) == (HELLO_RECORD, FAILURES[code])

    def test_the_table_of_failures_is_complete(self) -> None:
        """A status that a newer gRPC adds must be given a meaning."""
        assert set(FAILURES) == set(grpc.StatusCode)


class TestSilence:
    async def test_a_worker_that_does_not_begin_is_silent(self, connect: Connect) -> None:
        """`first_byte` runs until the first delta: Started alone does not end it."""

        async def script(peer: Peer) -> None:
            await peer.events((await peer.opened(), STARTED))
            assert (await peer.receive()).kind == CANCEL
            await peer.gone()

        link = await connect(script)
        stream = await open_stream(link, deadlines=Deadlines(connect=5, first_byte=SHORT, idle=10, total=20))

        with pytest.raises(WorkerSilent, match="did not begin"):
            await stream.read()

    async def test_a_worker_that_stops_is_silent(self, connect: Connect) -> None:
        """`idle` runs between deltas; what had arrived is read before the failure."""

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            await peer.gone()

        deadlines = Deadlines(connect=5, first_byte=10, idle=SHORT, total=20)
        seen, failure = await fail_to_end(await connect(script), deadlines)

        assert (seen, type(failure)) == (HELLO_RECORD, WorkerSilent)

    async def test_a_request_that_takes_too_long_is_ended(self, connect: Connect) -> None:
        """`total` ends a call that is never answered."""

        async def script(peer: Peer) -> None:
            await peer.opened()
            await peer.gone()

        link = await connect(script)

        with pytest.raises(WorkerSilent, match="did not finish"):
            await link.call(CHAT, chat_frame(), {}, Deadlines(connect=5, first_byte=10, idle=10, total=SHORT))

    async def test_a_worker_that_does_not_answer_pings_is_dead(self, connect: Connect) -> None:
        """Every stream of a channel whose PING stays unanswered fails, long before its own deadlines."""

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            assert (await peer.receive()).kind == PING
            await peer.gone()

        link = await connect(script, heartbeat=Heartbeat(interval=SHORT, patience=SHORT))
        seen, failure = await fail_to_end(link)

        assert (seen, type(failure)) == (HELLO_RECORD, WorkerSilent)

    async def test_a_worker_that_answers_pings_may_be_silent(self, connect: Connect) -> None:
        """Ten pings later a long prefill is still waited for."""

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            for _ in range(10):
                await peer.send(await peer.receive())
            await peer.events((number, STARTED), (number, HELLO), (number, DONE))
            await peer.gone()

        link = await connect(script, heartbeat=Heartbeat(interval=SHORT / 5, patience=5))

        assert (await fail_to_end(link))[1] is None


class TestConnecting:
    async def test_nobody_there_is_not_delivered(self, no_task_is_left: None) -> None:
        """A refused connection is ConnectFailed at once."""
        async with scripted_channel(answer_hello) as url:
            pass
        async with GrpcLink(url) as link:
            with pytest.raises(ConnectFailed):
                await link.call(CHAT, chat_frame(), {}, PATIENT)

    async def test_requests_that_come_together_share_one_attempt(self, connect: Connect) -> None:
        """Twenty first requests open one channel, and one that gives up ends nobody else's."""
        link = await connect(answer_hello)
        requests = [asyncio.create_task(open_stream(link)) for _ in range(20)]
        await asyncio.sleep(0)
        requests.pop().cancel()

        assert {(await request).status for request in requests} == {200}
        assert link.dials == 1

    async def test_attempts_after_failures_are_paced(self, no_task_is_left: None) -> None:
        """Fifty requests to a dead worker, one after the other within a pause, are a few attempts, and each fails in time."""
        async with scripted_channel(answer_hello) as url:
            pass
        pauses = Pauses(first=5.0, longest=5.0)
        async with GrpcLink(url, pauses=pauses) as link:
            for _ in range(50):
                with pytest.raises(ConnectFailed):
                    await link.call(CHAT, chat_frame(), {}, Deadlines(connect=SHORT))

            assert link.dials <= 2

    async def test_a_worker_that_was_started_again_is_found(self, no_task_is_left: None) -> None:
        """What was in flight is lost; a request after the restart is answered on the same link."""

        async def begin(peer: Peer) -> None:
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            await peer.gone()

        async with AsyncExitStack() as first:
            url = await first.enter_async_context(scripted_channel(begin))
            async with GrpcLink(url) as link:
                stream = await open_stream(link)
                await stream.read()
                await first.aclose()
                with pytest.raises(WorkerLost):
                    await read_to_end(stream)
                async with scripted_channel(answer_hello, int(url.rpartition(":")[2])):
                    assert b"[DONE]" in await read_to_end(await open_stream(link))

    async def test_closing_the_link_fails_what_is_open(self, connect: Connect) -> None:
        """Whoever waits gets WorkerLost, later requests ConnectFailed, and closing again does nothing."""
        opened = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.opened()
            opened.set()
            await peer.gone()

        link = await connect(script)
        waiting = asyncio.create_task(link.call(CHAT, chat_frame(), {}, PATIENT))
        await opened.wait()
        await link.close()
        await link.close()

        with pytest.raises(WorkerLost):
            await waiting
        with pytest.raises(ConnectFailed):
            await link.get("/health", PATIENT)

    @pytest.mark.parametrize("url", ["grpc://host", "grpc://h:1/path", "ftp://h:1", "h:1", "grpc://u@h:1"])
    def test_a_url_that_is_none_is_refused(self, url: str) -> None:
        """A link says at once that it cannot be."""
        with pytest.raises(ValueError, match="not of the form"):
            GrpcLink(url)


class TestLibrary:
    async def test_a_program_reads_typed_events(self, connect: Connect) -> None:
        """`events` gives what the worker said, one by one."""
        link = await connect(answer_hello)
        async with await link.events(CHAT, chat_frame(stream=True)) as events:
            seen: list[Event] = [event async for event in events]

        assert seen == [STARTED, HELLO, DONE]

    async def test_leaving_early_cancels(self, connect: Connect) -> None:
        """Leaving the block before the end is all a program does to cancel."""
        cancelled = asyncio.Event()

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            assert (await peer.receive()).kind == CANCEL
            cancelled.set()
            await peer.gone()

        link = await connect(script)
        async with await link.events(CHAT, chat_frame(stream=True)):
            pass

        await asyncio.wait_for(cancelled.wait(), 5)

    async def test_a_refusal_is_raised(self, connect: Connect) -> None:
        """A program gets a refusal as the error it is."""

        async def script(peer: Peer) -> None:
            await peer.reply(await peer.opened(), {"error": {"message": "No", "param": "seed"}}, status=400)
            await peer.gone()

        link = await connect(script)
        with pytest.raises(ServingError, match="No") as refused:
            await link.events(CHAT, chat_frame(stream=True))

        assert (refused.value.status, refused.value.param) == (400, "seed")


class TestPassingOn:
    @pytest.mark.parametrize("window", [0.0, 0.02])
    async def test_events_are_passed_on_without_being_read(self, connect: Connect, window: float) -> None:
        """Each batch reaches the taker as records, a fast stream's at the end of a window; the terminal is left for a reader."""
        passed: list[bytes] = []
        read = asyncio.Event()

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            await read.wait()
            for count in range(1, 4):
                await peer.events((number, HELLO))
                await until(lambda: len(passed) == count)  # noqa: B023  it is waited for at once
            await peer.events((number, DONE))
            await peer.gone()

        def take(records: bytes) -> bool:
            passed.append(records)
            return True

        stream = await open_stream(await connect(script, window=ReadWindow(window)), NAMED)
        assert b"hello" in await stream.read()
        read.set()
        await stream.pass_on(take)

        assert [records.count(b"hello") for records in passed] == [1, 1, 1]
        assert (await stream.read()).endswith(b"data: [DONE]\n\n")
        assert await stream.read() == b""
        stream.close()

    async def test_a_taker_that_has_enough_is_given_no_more(self, connect: Connect) -> None:
        """Once it has answered False, events wait to be read."""
        passed: list[bytes] = []
        read = asyncio.Event()

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            await read.wait()
            await peer.events((number, HELLO))
            await until(lambda: bool(passed))
            await peer.events((number, HELLO), (number, DONE))
            await peer.gone()

        def take(records: bytes) -> bool:
            passed.append(records)
            return False

        stream = await open_stream(await connect(script, window=ReadWindow(0.0)), NAMED)
        assert b"hello" in await stream.read()
        read.set()
        await stream.pass_on(take)

        assert (await read_to_end(stream)).count(b"hello") == 1
        assert len(passed) == 1
        stream.close()

    async def test_a_failure_ends_the_passing_on(self, connect: Connect) -> None:
        """What was passed on stays; the failure is raised where the stream is read."""
        passed: list[bytes] = []
        read = asyncio.Event()

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            await read.wait()
            await peer.events((number, HELLO))
            await until(lambda: bool(passed))
            await peer.end(grpc.StatusCode.UNAVAILABLE)

        def take(records: bytes) -> bool:
            passed.append(records)
            return True

        stream = await open_stream(await connect(script, window=ReadWindow(0.0)), NAMED)
        assert b"hello" in await stream.read()
        read.set()
        await stream.pass_on(take)

        with pytest.raises(WorkerLost):
            await stream.read()
        assert len(passed) == 1
        stream.close()

    async def test_a_failure_before_the_passing_on_is_raised_by_reading(self, connect: Connect) -> None:
        """When the channel dies while the client is waited for, passing on returns at once."""

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            await read.wait()
            await peer.end(grpc.StatusCode.UNAVAILABLE)

        read = asyncio.Event()
        link = await connect(script, window=ReadWindow(0.0))
        stream = await open_stream(link, NAMED)
        assert b"hello" in await stream.read()
        exchange = link.exchange
        assert exchange is not None
        read.set()
        await until(lambda: exchange.ended)
        await stream.pass_on(lambda _: True)

        with pytest.raises(WorkerLost):
            await stream.read()
        stream.close()

    async def test_a_taker_that_fails_ends_its_own_stream(self, connect: Connect) -> None:
        """Other streams of the channel go on."""

        async def script(peer: Peer) -> None:
            number = await peer.opened()
            await peer.events((number, STARTED), (number, HELLO))
            await read.wait()
            await peer.events((number, HELLO))
            await peer.receive()  # The stream is cancelled.
            await answer_hello(peer)

        def take(_records: bytes) -> bool:
            raise RuntimeError("no")

        read = asyncio.Event()
        link = await connect(script, window=ReadWindow(0.0))
        stream = await open_stream(link, NAMED)
        assert b"hello" in await stream.read()
        read.set()
        await stream.pass_on(take)
        with pytest.raises(BadReply, match="could not be passed on"):
            await stream.read()
        stream.close()

        assert b"[DONE]" in await read_to_end(await open_stream(link))
