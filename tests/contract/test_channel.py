"""The worker's channel on a real socket: the same answers as over HTTP, and what only a channel has."""

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import msgspec
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from gateway.frames import Frames
from gateway.links.base import BadReply, ConnectFailed, WorkerLost
from gateway.links.grpc import GrpcLink, Tls, channel_options
from gateway.links.http import HttpLink
from gateway.spliced_frame import SPLICED_BYTES, RequestFrame
from schemas.codec import encode_frame, read_chat_view, read_completion_view, read_events
from schemas.dialect import PACKRELAY, STOCK, Dialect
from schemas.events import Delta, Done, Started
from schemas.pb.channel_pb2 import CANCEL, EVENTS, OPEN, PING, REPLY, Frame
from schemas.pb.channel_pb2_grpc import ChannelStub
from tests.channel_rig import (
    CHAT,
    COMPLETIONS,
    PATIENT,
    ChannelWorker,
    channel_worker,
    chat_frame,
    open_stream,
    read_to_end,
)
from tests.fakes import ControlledEngine
from tests.listening import Listening
from tests.unit.links.raw_server import pass_time, until
from tests.unit.links.scripted_channel import Peer, scripted_channel
from worker import channel
from worker.app import create_app
from worker.engines.base import Engine
from worker.engines.scripted import create as create_scripted
from worker.operations import Front

if TYPE_CHECKING:  # it is in the stubs' types only
    from schemas.pb.channel_pb2_grpc import ChannelAsyncStub

TAGGED = {"x-trtllm-msgpack": "1"}
CERTIFICATE = Path(__file__).parents[1] / "unit" / "links" / "tls" / "localhost.crt"
KEY = CERTIFICATE.with_suffix(".key")


@pytest.fixture
def engine() -> ControlledEngine:
    """An engine that says what the test has it say."""
    return ControlledEngine()


@pytest.fixture
async def worker(engine: ControlledEngine) -> AsyncIterator[ChannelWorker]:
    """A worker's channel."""
    async with channel_worker(engine) as running:
        yield running


@pytest.fixture
async def link(worker: ChannelWorker) -> AsyncIterator[GrpcLink]:
    """The gateway's link to it."""
    async with GrpcLink(worker.url) as opened:
        yield opened


@pytest.fixture
async def stub(worker: ChannelWorker) -> "AsyncIterator[ChannelAsyncStub]":
    """A plain gRPC client of it, as other programs have."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{worker.port}") as opened:
        yield ChannelStub(opened)


def opening(payload: bytes, number: int = 1, operation: str = CHAT, **headers: str) -> Frame:
    """An OPEN frame with a tagged payload."""
    return Frame(stream=number, kind=OPEN, operation=operation, headers=TAGGED | headers, payload=payload)


class TestSimpleClients:
    async def test_call_answers_whole(self, engine: ControlledEngine, stub: "ChannelAsyncStub") -> None:
        """Call gives one REPLY whose payload is the whole completion in msgpack."""
        call = stub.Call(opening(chat_frame()))
        (await engine.asked()).say("hello", "stop")
        reply = await call

        body = msgspec.msgpack.decode(reply.payload)
        assert (reply.kind, reply.headers["status"]) == (REPLY, "200")
        assert body["choices"][0]["message"]["content"] == "hello"

    async def test_generate_streams_batches(self, engine: ControlledEngine, stub: "ChannelAsyncStub") -> None:
        """Generate gives EVENTS frames whose events end with done."""
        call = stub.Generate(opening(chat_frame(stream=True)))
        (await engine.asked()).say("hello", "stop")
        events = [event async for frame in call for _, event in read_events(frame.payload)[0]]

        assert [type(event) for event in events] == [Started, Delta, Done]

    async def test_call_refuses_a_stream(self, stub: "ChannelAsyncStub") -> None:
        """A request with `stream` true is a 400 that names the field, not a broken rpc."""
        reply = await stub.Call(opening(chat_frame(stream=True)))

        assert reply.headers["status"] == "400"
        assert msgspec.msgpack.decode(reply.payload)["error"]["param"] == "stream"

    async def test_cancelling_the_rpc_aborts_the_engine(
        self, engine: ControlledEngine, stub: "ChannelAsyncStub"
    ) -> None:
        """A client that cancels Generate in mid-stream, or Call during prefill, stops the engine."""
        stream = stub.Generate(opening(chat_frame(stream=True)))
        first = await engine.asked(0)
        first.say("hel")
        await stream.read()
        stream.cancel()
        call = stub.Call(opening(chat_frame()))
        second = await engine.asked(1)
        call.cancel()

        await asyncio.wait_for(asyncio.gather(first.closed.wait(), second.closed.wait()), 5)
        assert len(engine.aborted) == 2

    async def test_json_is_understood_too(self, engine: ControlledEngine, stub: "ChannelAsyncStub") -> None:
        """Without the tag the payload is JSON, as on HTTP."""
        body = b'{"model":"fake","messages":[{"role":"user","content":"hi"}]}'
        call = stub.Call(Frame(kind=OPEN, operation=CHAT, payload=body))
        (await engine.asked()).say("a", "stop")

        assert (await call).headers["status"] == "200"

    @pytest.mark.parametrize("frame", [Frame(), Frame(kind=CANCEL)])
    async def test_a_first_frame_that_opens_nothing_is_refused(self, stub: "ChannelAsyncStub", frame: Frame) -> None:
        """The rpc itself fails, with a sentence."""
        with pytest.raises(grpc.aio.AioRpcError, match="OPEN") as refused:
            await stub.Call(frame)

        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


class TestExchange:
    async def test_a_client_that_ends_its_side_is_answered(
        self, engine: ControlledEngine, stub: "ChannelAsyncStub"
    ) -> None:
        """After done_writing the open requests are finished, and then the rpc ends well."""
        call = stub.Exchange()
        await call.write(opening(chat_frame(stream=True)))
        await call.done_writing()
        (await engine.asked()).say("hi", "stop")
        frames = [frame async for frame in call]

        assert {frame.kind for frame in frames} == {EVENTS}
        assert await call.code() is grpc.StatusCode.OK

    async def test_a_request_that_cannot_be_read_fails_alone(self, engine: ControlledEngine, link: GrpcLink) -> None:
        """A malformed payload is a 400 of its own stream; another request on the same channel is answered."""
        going = asyncio.create_task(open_stream(link))
        sequence = await engine.asked()
        broken = await link.call(CHAT, b"\xc1", {}, PATIENT)
        sequence.say("fine", "stop")

        assert broken.status == 400
        assert b"fine" in await read_to_end(await going)
        assert link.dials == 1

    async def test_a_number_used_twice_is_a_broken_client(self, stub: "ChannelAsyncStub") -> None:
        """The rpc ends with INVALID_ARGUMENT."""
        call = stub.Exchange()
        await call.write(opening(b"\xc1"))
        await call.write(opening(b"\xc1"))
        with pytest.raises(grpc.aio.AioRpcError, match="grow") as refused:
            _ = [frame async for frame in call]

        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    async def test_an_rpc_that_ends_cancels_its_requests(
        self, engine: ControlledEngine, stub: "ChannelAsyncStub"
    ) -> None:
        """Every request of a client that has gone is aborted."""
        call = stub.Exchange()
        await call.write(opening(chat_frame(stream=True), 1))
        await call.write(opening(chat_frame(), 2))
        sequences = [await engine.asked(0), await engine.asked(1)]
        call.cancel()

        await asyncio.wait_for(asyncio.gather(*(sequence.closed.wait() for sequence in sequences)), 5)

    async def test_cancel_is_idempotent(self, engine: ControlledEngine, stub: "ChannelAsyncStub") -> None:
        """CANCEL twice, of a finished request, and of one never opened: nothing happens beyond the one abort."""
        call = stub.Exchange()
        await call.write(opening(chat_frame(stream=True)))
        sequence = await engine.asked()
        for number in (1, 1, 77):
            await call.write(Frame(stream=number, kind=CANCEL))
        await sequence.closed.wait()
        await call.write(Frame(stream=1, kind=CANCEL))
        await call.write(Frame(kind=PING, payload=b"still there"))

        answer = await call.read()
        assert (isinstance(answer, Frame) and answer.payload, len(engine.aborted)) == (b"still there", 1)

    async def test_everything_ready_is_one_message(self, engine: ControlledEngine, link: GrpcLink) -> None:
        """What 32 streams say in one turn of the loop takes far fewer than 32 messages."""
        opening_all = [asyncio.create_task(open_stream(link)) for _ in range(32)]
        sequences = [await engine.asked(number) for number in range(32)]
        for sequence in sequences:
            sequence.say("a")
        streams = [await task for task in opening_all]
        assert link.exchange is not None
        before = link.exchange.messages
        for sequence in sequences:
            sequence.say("b", "stop")
        for stream in streams:
            await read_to_end(stream)

        assert link.exchange.messages - before <= 4

    async def test_a_slow_start_is_refused_when_full(self) -> None:
        """More requests than the worker holds are answered 429 with Retry-After, over the channel as over HTTP."""
        engine = ControlledEngine()
        async with channel_worker(engine, max_requests=1) as worker, GrpcLink(worker.url) as link:
            first = asyncio.create_task(open_stream(link))
            await engine.asked()
            refused = await open_stream(link)
            first.cancel()

        assert (refused.status, refused.headers["retry-after"]) == (429, "1")


class TestLimits:
    async def test_a_request_above_the_workers_limit_is_a_413(self) -> None:
        """A gateway with a larger limit hears 413 for the request, and its channel goes on."""
        async with (
            channel_worker(ControlledEngine(), max_body_bytes=1000) as worker,
            GrpcLink(worker.url) as link,
        ):
            reply = await link.call(CHAT, chat_frame("x" * 1000), {}, PATIENT)

            assert reply.status == 413
            assert (await link.get("/health", PATIENT)).status == 200

    async def test_a_reply_above_the_limit_is_a_413(self) -> None:
        """A whole reply that would not fit into a message is refused before it is sent."""
        engine = ControlledEngine(context_length=4096)
        async with channel_worker(engine, max_reply_bytes=2000) as worker, GrpcLink(worker.url) as link:
            call = asyncio.create_task(link.call(CHAT, chat_frame(), {}, PATIENT))
            (await engine.asked()).say("x" * 2000, "stop")
            reply = await call

        assert (reply.status, b"reply_too_large" in reply.body) == (413, True)

    async def test_an_event_above_the_limit_fails_its_stream(self) -> None:
        """The stream ends with an error record; what fits is split over several messages."""
        engine = ControlledEngine(context_length=8192)
        async with channel_worker(engine, max_reply_bytes=2000) as worker, GrpcLink(worker.url) as link:
            opened = asyncio.create_task(open_stream(link))
            sequence = await engine.asked()
            sequence.say("x" * 500)
            stream = await opened
            sequence.say("y" * 2500)
            seen = await read_to_end(stream)

        assert b"x" * 500 in seen
        assert b"reply_too_large" in seen
        assert b"[DONE]" not in seen

    async def test_a_message_above_the_workers_limit_ends_that_client_only(self, engine: ControlledEngine) -> None:
        """A client that knows no limit is refused by gRPC; the gateway's channel is another connection."""
        async with channel_worker(engine, max_body_bytes=1000) as worker, GrpcLink(worker.url) as link:
            going = asyncio.create_task(open_stream(link))
            sequence = await engine.asked()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{worker.port}") as opened:
                call = ChannelStub(opened).Exchange()
                await call.write(opening(b"x" * 200_000))
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call.read()
            sequence.say("fine", "stop")

            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert b"fine" in await read_to_end(await going)

    async def test_a_message_above_the_gateways_limit_ends_the_channel(self, engine: ControlledEngine) -> None:
        """A gateway with a smaller limit than its worker fails what was open, and opens a channel anew."""
        big = ControlledEngine(context_length=200_000)
        async with channel_worker(big) as worker, GrpcLink(worker.url, max_reply_bytes=1000) as link:
            call = asyncio.create_task(link.call(CHAT, chat_frame(max_tokens=150_000), {}, PATIENT))
            (await big.asked()).say("x" * 100_000, "stop")
            with pytest.raises(BadReply):
                await call

            assert (await link.get("/health", PATIENT)).status == 200
            assert link.dials == 2


class TestManyCancels:
    async def test_thousand_leave_nothing_behind(self, worker: ChannelWorker, link: GrpcLink) -> None:
        """Requests that are cancelled at any moment, queued or sent, free everything at both ends of the one channel."""
        dice = random.Random(11)
        at_once = asyncio.Semaphore(50)

        async def one() -> None:
            async with at_once:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(dice.uniform(0, 0.01)):
                        (await open_stream(link)).close()

        await asyncio.gather(*(one() for _ in range(1000)))
        await until(lambda: worker.service.in_flight == 0)

        assert link.exchange is not None
        assert (link.exchange.open_streams, link.dials) == (0, 1)


class TestDraining:
    async def test_a_worker_that_drains_says_so(
        self, engine: ControlledEngine, worker: ChannelWorker, link: GrpcLink
    ) -> None:
        """GOAWAY reaches the link, the open stream finishes, and health says NOT_SERVING."""
        opened = asyncio.create_task(open_stream(link))
        sequence = await engine.asked()
        sequence.say("he")
        stream = await opened
        worker.service.drain()
        await worker.server.drain()
        await until(lambda: link.exchange is not None and link.exchange.draining)
        refused = await open_stream(link)
        sequence.say("llo", "stop")

        assert refused.status == 503
        assert (await read_to_end(stream)).endswith(b"[DONE]\n\n")
        assert await health(worker.port) == health_pb2.HealthCheckResponse.NOT_SERVING

    async def test_stopping_writes_what_was_said(
        self, engine: ControlledEngine, worker: ChannelWorker, link: GrpcLink
    ) -> None:
        """The last words of a worker arrive although it stops right after them; a stream it never finished is lost."""
        whole, cut = [asyncio.create_task(open_stream(link)) for _ in range(2)]
        for number in range(2):
            (await engine.asked(number)).say("a")
        streams = [await whole, await cut]
        engine.sequences[0].say("b", "stop")
        await until(lambda: worker.service.in_flight == 1)
        await worker.server.stop()

        assert (await read_to_end(streams[0])).endswith(b"[DONE]\n\n")
        with pytest.raises(WorkerLost):
            await read_to_end(streams[1])


class TestKeys:
    @pytest.mark.parametrize(("shown", "status"), [("right", 200), ("wrong", 401), (None, 401)])
    async def test_the_shared_key_is_checked(self, shown: str | None, status: int) -> None:
        """Every request shows the key in its own headers, or is answered 401."""
        async with (
            channel_worker(ControlledEngine(), key="right") as worker,
            GrpcLink(worker.url, key=shown) as link,
        ):
            assert (await link.get("/health", PATIENT)).status == status


class TestTls:
    async def test_a_certificate_is_checked(self) -> None:
        """A link that trusts the worker's certificate gets through, one that does not is refused."""
        server_tls = channel.Tls(certificate=CERTIFICATE, key=KEY)
        async with channel_worker(ControlledEngine(), tls=server_tls) as worker:
            url = f"grpc://localhost:{worker.port}"
            async with GrpcLink(url, tls=Tls(ca=CERTIFICATE.read_bytes())) as link:
                assert (await link.get("/health", PATIENT)).status == 200
            async with GrpcLink(url, tls=Tls()) as link:
                with pytest.raises(ConnectFailed):
                    await link.get("/health", PATIENT)

    async def test_mutual_tls_asks_for_a_certificate(self) -> None:
        """With a CA the worker takes only clients that show a certificate signed by it."""
        server_tls = channel.Tls(certificate=CERTIFICATE, key=KEY, ca=CERTIFICATE)
        pem, key = CERTIFICATE.read_bytes(), KEY.read_bytes()
        async with channel_worker(ControlledEngine(), tls=server_tls) as worker:
            url = f"grpc://localhost:{worker.port}"
            async with GrpcLink(url, tls=Tls(ca=pem, certificate=pem, key=key)) as link:
                assert (await link.get("/health", PATIENT)).status == 200
            async with GrpcLink(url, tls=Tls(ca=pem)) as link:
                with pytest.raises(ConnectFailed):
                    await link.get("/health", PATIENT)


async def health(port: int, service: str = channel.SERVICE) -> int:
    """What the standard health service says. Called by name: its own stub has no types."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        check = opened.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        return int((await check(health_pb2.HealthCheckRequest(service=service))).status)


class TestStandardServices:
    async def test_health_is_serving(self, worker: ChannelWorker) -> None:
        """grpc.health.v1 knows the whole server and our service."""
        assert {await health(worker.port), await health(worker.port, "")} == {health_pb2.HealthCheckResponse.SERVING}

    async def test_reflection_lists_and_describes(self, worker: ChannelWorker) -> None:
        """A client that knows nothing finds the services, Frame's fields, and then calls health."""
        ask = reflection_pb2.ServerReflectionRequest
        questions = [ask(list_services=""), ask(file_containing_symbol="packrelay.v1.Frame")]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{worker.port}") as opened:
            reflect = opened.stream_stream(
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                ask.SerializeToString,
                reflection_pb2.ServerReflectionResponse.FromString,
            )
            listed, described = [answer async for answer in reflect(iter(questions))]

        services = {service.name for service in listed.list_services_response.service}
        file = FileDescriptorProto.FromString(described.file_descriptor_response.file_descriptor_proto[0])
        assert services >= {"packrelay.v1.Channel", "grpc.health.v1.Health"}
        assert [field.name for field in file.message_type[0].field][:2] == ["stream", "kind"]


class TestKeepalive:
    async def test_pings_never_end_a_silent_channel(self, engine: ControlledEngine, worker: ChannelWorker) -> None:
        """A client that pings once a second, the most gRPC sends, while the worker says nothing is not sent too_many_pings.

        With gRPC's own defaults on the server the fourth ping ends the channel; at our 20 s the fourth comes after 80 s.
        """
        eager = dict(channel_options(1 << 20, 1 << 20)) | {"grpc.keepalive_time_ms": 1000}
        async with grpc.aio.insecure_channel(f"127.0.0.1:{worker.port}", options=list(eager.items())) as opened:
            stub: ChannelAsyncStub = ChannelStub(opened)
            call = stub.Call(opening(chat_frame()))
            sequence = await engine.asked()
            await pass_time(5.0)
            sequence.say("hi", "stop")

            assert (await call).headers["status"] == "200"


LARGE = "grüß " * (2 * SPLICED_BYTES // 5)
CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": [1.5]}}}]},
    "nulls": {"top_k": 0, "seed": None, "stop": ["a", "é"], "logit_bias": {"5": -1}},
    "stream": {"stream": True, "stream_options": {"include_usage": True}},
    "large": {"messages": [{"role": "user", "content": LARGE}]},
    "large tools": {"tools": [{"type": "function", "function": {"name": "f", "description": LARGE}}]},
}
PROMPTS: dict[str, Any] = {
    "text": "hi",
    "texts": ["a", "b"],
    "ids": [1, 2, 3],
    "batches": [[1], [2, 3]],
    "large": LARGE,
}


class TestSameBytes:
    """The payload of OPEN is the body HTTP would carry."""

    async def recorded(self, frame: RequestFrame, operation: str) -> tuple[bytes, bytes]:
        """What a server is sent for one frame: over HTTP, and over the channel."""
        bodies: list[bytes] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            """Any: ASGI."""
            body = b""
            while (message := await receive())["type"] == "http.request":
                body += message["body"]
                if not message["more_body"]:
                    break
            bodies.append(body)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"{}"})

        async with Listening(app, lifespan="off") as listening:
            link = HttpLink(listening.url)
            await link.call(operation, frame, {}, PATIENT)
            await link.close()
        return bodies[0], await payload_of(frame, operation)

    @pytest.mark.parametrize("fields", CHATS.values(), ids=CHATS)
    @pytest.mark.parametrize("dialect", [STOCK, PACKRELAY], ids=["plain", "deferred"])
    async def test_of_every_chat_form(self, dialect: Dialect, fields: dict[str, Any]) -> None:
        """Plain and deferred form, with tools, nulls and options: the bytes are one and the same."""
        body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "grüß"}]} | fields)
        frame = Frames(read_chat_view(body)[0]).frame(dialect)

        assert await self.recorded(frame, CHAT) == (bytes(frame), bytes(frame))

    @pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
    async def test_of_every_prompt(self, prompt: Any) -> None:
        """Text, texts, ids and lists of ids. Any: prompts."""
        body = msgspec.json.encode({"model": "m", "prompt": prompt, "echo": False})
        frame = Frames(read_completion_view(body)[0]).frame(STOCK)

        assert await self.recorded(frame, COMPLETIONS) == (bytes(frame), bytes(frame))


async def payload_of(frame: RequestFrame, operation: str) -> bytes:
    """The payload that arrives at a channel for a frame."""
    arrived: list[Frame] = []

    async def script(peer: Peer) -> None:
        arrived.append(await peer.receive())
        await peer.reply(arrived[0].stream, {})
        await peer.gone()

    async with scripted_channel(script) as url, GrpcLink(url) as link:
        await link.call(operation, frame, {}, PATIENT)
    assert arrived[0].operation == operation
    return arrived[0].payload


HI = [{"role": "user", "content": "hi"}]
LOGPROBS: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": HI}),
    "chat, several, with logprobs": (CHAT, {"messages": HI, "n": 2, **LOGPROBS}),
    "completion": (COMPLETIONS, {"prompt": ["Once upon", "a time"], "logprobs": 1, "echo": True}),
    "refused": (CHAT, {"messages": HI, "temperature": -1}),
    "refused stream": (COMPLETIONS, {"prompt": "a", "stream": True, "best_of": 2, "n": 1}),
    "another model": (CHAT, {"messages": HI, "model": "other", "stream": True}),
    "malformed": (CHAT, {"messages": "hi"}),
    "failing": (CHAT, {"messages": [{"role": "user", "content": "[[text:hello]] [[fault:raise_after=3]]"}]}),
}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '{"name": "f", "arguments": {"a": 1}}'
FORCED = {"tool_choice": {"type": "function", "function": {"name": "f"}}}
TOOLS: dict[str, tuple[dict[str, Any], str]] = {
    "on offer": ({"tools": [FUNCTION]}, f"<tool_call>\n{CALL}\n</tool_call>"),
    "called": ({"tools": [FUNCTION], **FORCED}, CALL),
}
STREAMED: dict[str, tuple[str, dict[str, Any], int]] = {
    "chat": (CHAT, {"messages": HI}, 1),
    "chat, with logprobs and usage": (CHAT, {"messages": HI, **LOGPROBS, **USAGE}, 1),
    "chat, usage at the end": (CHAT, {"messages": HI, "stream_options": {"include_usage": True}}, 1),
    "chat, several": (CHAT, {"messages": HI, "n": 3, **LOGPROBS}, 3),
    "chat, stopped by a string": (CHAT, {"messages": HI, "stop": ["!"]}, 1),
    "completion": (COMPLETIONS, {"prompt": "Once", "logprobs": 1, "stream_options": {"include_usage": True}}, 1),
    "completion, echoed": (COMPLETIONS, {"prompt": "Once", "logprobs": 1, "echo": True}, 1),
    "completion of ids": (COMPLETIONS, {"prompt": [79, 110, 99, 101], **USAGE}, 1),
    "completion of several prompts": (COMPLETIONS, {"prompt": ["Once", "twice"], "n": 2}, 4),
}
_CREATED = re.compile(rb'"created":\d+')
_OWN = re.compile(rb'"created":\d+|"id":"call_[^"]+"')
SAME = {"x-packrelay-request-id": "same"}

Link = HttpLink | GrpcLink


@asynccontextmanager
async def both_links(engine: Engine) -> AsyncIterator[tuple[Link, Link]]:
    """One worker, and both ways to it."""
    async with channel_worker(engine) as worker:
        app = create_app(worker.service, Front(max_body_bytes=1 << 20))
        async with Listening(app, lifespan="off") as listening, GrpcLink(worker.url) as channel_link:
            http_link = HttpLink(listening.url)
            yield http_link, channel_link
            await http_link.close()


async def in_steps(link: Link, engine: ControlledEngine, operation: str, frame: bytes, choices: int) -> bytes:
    """A whole stream, of which the next piece is said once the one before was read: so nothing is ever merged."""
    opening_it = asyncio.create_task(link.stream(operation, frame, SAME, PATIENT))
    first = len(engine.sequences)
    sequences = [await engine.asked(first + number) for number in range(choices)]
    sequences[0].say("h")
    stream = await opening_it
    seen = await stream.read()
    for piece in ("e", "ll", "\u00e9"):
        for sequence in sequences:
            sequence.say(piece)
            seen += await stream.read()
    for sequence in sequences:
        sequence.say("!", "stop")
        seen += await stream.read()
    seen += await read_to_end(stream)
    stream.close()
    return seen


async def at_once(link: Link, engine: ControlledEngine, frame: bytes, text: str) -> bytes:
    """A whole chat stream whose text is all there at the beginning."""
    opening_it = asyncio.create_task(link.stream(CHAT, frame, SAME, PATIENT))
    (await engine.asked(len(engine.sequences))).say(text, "stop")
    stream = await opening_it
    return await read_to_end(stream)


class TestSameAnswers:
    """One worker, both links: what a client sees does not depend on the link."""

    @pytest.mark.parametrize(("operation", "fields"), WHOLE.values(), ids=WHOLE)
    async def test_of_whole_replies_and_refusals(self, operation: str, fields: dict[str, Any]) -> None:
        """Status and body are equal, save `created`."""
        frame = encode_frame({"model": "scripted", "max_tokens": 8, "temperature": 0} | fields)
        engine = create_scripted(None, {})
        async with both_links(engine) as links:
            http, grpc_ = [await link.call(operation, frame, SAME, PATIENT) for link in links]
        await engine.close()

        assert (grpc_.status, _CREATED.sub(b"", grpc_.body)) == (http.status, _CREATED.sub(b"", http.body))

    @pytest.mark.parametrize(("operation", "fields", "choices"), STREAMED.values(), ids=STREAMED)
    async def test_of_streams(
        self, engine: ControlledEngine, operation: str, fields: dict[str, Any], choices: int
    ) -> None:
        """The SSE bytes of every type of request are equal, save `created` and the ids of tool calls."""
        frame = encode_frame({"model": "fake", "stream": True} | fields)
        async with both_links(engine) as links:
            http, grpc_ = [await in_steps(link, engine, operation, frame, choices) for link in links]

        assert _OWN.sub(b"", grpc_) == _OWN.sub(b"", http)
        assert http.endswith(b"data: [DONE]\n\n")

    @pytest.mark.parametrize(("fields", "said"), TOOLS.values(), ids=TOOLS)
    async def test_of_streams_with_tools(self, fields: dict[str, Any], said: str) -> None:
        """A call that the model makes of its own accord, and a forced one: its pieces are told in the same bytes."""
        engine = ControlledEngine(context_length=4096)
        frame = encode_frame({"model": "fake", "stream": True, "messages": HI} | fields)
        async with both_links(engine) as links:
            http, grpc_ = [await at_once(link, engine, frame, said) for link in links]

        assert _OWN.sub(b"", grpc_) == _OWN.sub(b"", http)
        assert b'"tool_calls":[' in http
        assert http.endswith(b"data: [DONE]\n\n")
