"""The worker's contract as a gateway sees it, the same over HTTP and over the channel: one suite, two links."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

import msgspec
import pytest

from gateway.links.base import Deadlines, Link, Reply, ReplyStream, WorkerSilent
from gateway.links.grpc import GrpcLink
from gateway.links.http import HttpLink
from schemas.codec import WORKER_AUTH_HEADER, encode_frame
from schemas.disagg import handoff_signature, worker_signature
from tests.channel_rig import CHAT, COMPLETIONS, PATIENT, read_to_end
from tests.fakes import ControlledEngine
from tests.worker_rig import Worker, serving
from worker.engines import create_engine
from worker.engines.base import Engine, EngineDead, EngineRefused

HELLO: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hello"}]}
PROMPT: dict[str, Any] = {"model": "fake", "prompt": "hello"}
ABORT = "/_packrelay/abort"
NAMED = {"x-packrelay-request-id": "mine"}
ABORTED_WITHIN_SECONDS = 10 * 0.1
"""The hundred milliseconds with tenfold slack."""

Connect = Callable[..., Awaitable[tuple[Worker, Link]]]


@pytest.fixture
async def connect(link: str) -> AsyncIterator[Connect]:
    """Starts workers with an engine and settings, and gives a link to each; all end with the test."""
    async with AsyncExitStack() as stack:

        async def start(engine: Engine, **settings: Any) -> tuple[Worker, Link]:
            if link == "grpc":
                settings["grpc_port"] = 0
            worker = await stack.enter_async_context(serving(engine, **settings))
            opened: Link = GrpcLink(worker.url) if link == "grpc" else HttpLink(worker.url)
            stack.push_async_callback(opened.close)
            return worker, opened

        yield start


@pytest.fixture
def engine() -> ControlledEngine:
    """An engine that says what the test has it say."""
    return ControlledEngine()


@pytest.fixture
async def to_worker(connect: Connect, engine: ControlledEngine) -> Link:
    """The link to one worker."""
    return (await connect(engine))[1]


def calling(
    link: Link, path: str, body: dict[str, Any], headers: Mapping[str, str] | None = None
) -> "asyncio.Task[Reply]":
    """A request for a whole reply, on its way."""
    return asyncio.create_task(link.call(path, encode_frame(body), headers or {}, PATIENT))


def streaming(
    link: Link, body: dict[str, Any], headers: Mapping[str, str] | None = None
) -> "asyncio.Task[ReplyStream]":
    """A request for a chat stream, on its way."""
    return asyncio.create_task(link.stream(CHAT, encode_frame(body | {"stream": True}), headers or {}, PATIENT))


def error_of(reply: Reply) -> dict[str, Any]:
    """The error object of a refusal. Any: its fields are texts or null."""
    error: dict[str, Any] = json.loads(reply.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def records(body: bytes) -> list[Any]:
    """The JSON of every record before the terminal. Any: chunks are read as a client does."""
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]


class TestAnswers:
    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    async def test_a_request_is_answered_in_json(self, to_worker: Link, engine: ControlledEngine, path: str) -> None:
        """A whole reply is the completion with its usage, under the gateway's own id."""
        asked = calling(to_worker, path, HELLO if path == CHAT else PROMPT, NAMED)
        (await engine.asked()).say("Hi", "stop")
        reply = await asked

        body = json.loads(reply.body)
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert body["id"].endswith("cmpl-mine")
        assert body["usage"]["total_tokens"] == 7

    async def test_an_answer_is_msgpack_when_asked_for(self, to_worker: Link, engine: ControlledEngine) -> None:
        """With `Accept: application/msgpack` the same map comes as one msgpack value."""
        asked = calling(to_worker, COMPLETIONS, PROMPT, {"Accept": "application/msgpack"})
        (await engine.asked()).say("Hi", "stop")
        reply = await asked

        assert reply.headers["content-type"] == "application/msgpack"
        assert msgspec.msgpack.decode(reply.body)["choices"][0]["text"] == "Hi"

    async def test_the_deferred_form_is_read(self, to_worker: Link, engine: ControlledEngine) -> None:
        """Messages may come as the client's JSON inside the frame."""
        asked = calling(to_worker, CHAT, HELLO | {"messages": json.dumps(HELLO["messages"]).encode()})
        sequence = await engine.asked()
        sequence.say("Hi", "stop")

        assert (await asked).status == 200
        assert sequence.request.prompt == list(b"hello")

    async def test_a_stream_is_records_and_one_terminal(self, to_worker: Link, engine: ControlledEngine) -> None:
        """Chunks arrive as they are made; the finish, the usage and `[DONE]` end the stream."""
        opening = streaming(to_worker, HELLO | {"stream_options": {"include_usage": True}})
        sequence = await engine.asked()
        sequence.say("Hi")
        stream = await opening
        first = await stream.read()
        sequence.say("!", "stop")
        rest = await read_to_end(stream)
        stream.close()

        assert (stream.status, stream.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
        assert [record["choices"][0]["delta"]["content"] for record in records(first)] == ["Hi"]
        assert [len(record["choices"]) for record in records(rest)] == [1, 0]
        assert (rest.endswith(b"data: [DONE]\n\n"), rest.count(b"[DONE]")) == (True, 1)


class TestErrors:
    async def test_what_is_not_there_is_a_404(self, to_worker: Link) -> None:
        """Another path, and another model; the latter with the code clients look for."""
        nowhere = await to_worker.call("/nowhere", encode_frame({}), {}, PATIENT)
        other = await calling(to_worker, CHAT, HELLO | {"model": "other"})

        assert (nowhere.status, other.status) == (404, 404)
        assert error_of(nowhere)["type"] == "invalid_request_error"
        assert error_of(other)["code"] == "model_not_found"

    @pytest.mark.parametrize("frame", [b"\xc1", b"", b"\x81", encode_frame([1]), encode_frame(HELLO) + b"\x00"])
    async def test_what_cannot_be_read_is_a_400(self, to_worker: Link, frame: bytes) -> None:
        """However a frame is broken, the answer is the error object, and the next request is served."""
        reply = await to_worker.call(CHAT, frame, {}, PATIENT)

        assert reply.status == 400
        assert error_of(reply)["message"]
        assert (await to_worker.get("/health", PATIENT)).status == 200

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_refusal_is_a_status_even_for_a_stream(
        self, to_worker: Link, engine: ControlledEngine, stream: bool
    ) -> None:
        """What is known before the first token is never hidden in a stream."""
        asked = asyncio.create_task(to_worker.stream(CHAT, encode_frame(HELLO | {"stream": stream}), {}, PATIENT))
        (await engine.asked()).fail(EngineRefused("No such form.", "response_format"))
        refused = await asked
        body = await refused.body()
        refused.close()

        assert (refused.status, json.loads(body)["error"]["param"]) == (400, "response_format")

    async def test_a_prompt_too_long_is_a_400(self, to_worker: Link) -> None:
        """A request that does not fit the context is refused as any other."""
        reply = await calling(to_worker, COMPLETIONS, PROMPT | {"prompt": "x" * 99})

        assert (reply.status, error_of(reply)["code"]) == (400, "context_length_exceeded")

    async def test_a_failure_in_mid_stream_is_a_record(self, to_worker: Link, engine: ControlledEngine) -> None:
        """After the first bytes an error is the last record, there is no `[DONE]`, and nothing internal is told."""
        opening = streaming(to_worker, HELLO)
        sequence = await engine.asked()
        sequence.say("Hi")
        stream = await opening
        sequence.fail(RuntimeError("/srv/secret.py"))
        body = await read_to_end(stream)

        assert records(body)[-1]["error"]["code"] == "engine_failed"
        assert b"[DONE]" not in body
        assert b"secret" not in body

    async def test_a_body_too_large_is_a_413(self, connect: Connect, engine: ControlledEngine) -> None:
        """The limit is the operator's."""
        _, link = await connect(engine, max_body_bytes=100)
        reply = await calling(link, COMPLETIONS, PROMPT | {"prompt": "x" * 101})

        assert (reply.status, error_of(reply)["code"]) == (413, "body_too_large")

    async def test_an_overloaded_worker_says_when_to_come_back(
        self, connect: Connect, engine: ControlledEngine
    ) -> None:
        """One request too many is a 429 with Retry-After."""
        _, link = await connect(engine, max_requests=1)
        held = calling(link, CHAT, HELLO)
        sequence = await engine.asked()
        reply = await calling(link, CHAT, HELLO)
        sequence.say("Hi", "stop")
        await held

        assert (reply.status, reply.headers["retry-after"]) == (429, "1")

    async def test_a_deadline_is_kept(self, to_worker: Link, engine: ControlledEngine) -> None:
        """When the gateway's time is over the answer is a 504, and the engine stops."""
        reply = await calling(to_worker, CHAT, HELLO, {"x-packrelay-deadline-ms": "500"})

        assert (reply.status, error_of(reply)["code"]) == (504, "deadline")
        assert engine.sequences[0].aborts == 1

    async def test_a_deadline_that_is_no_number_is_a_400(self, to_worker: Link) -> None:
        """It is not silently taken as none."""
        assert (await calling(to_worker, CHAT, HELLO, {"x-packrelay-deadline-ms": "soon"})).status == 400


class TestLeaving:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_before_the_first_token_aborts(self, to_worker: Link, engine: ControlledEngine, stream: bool) -> None:
        """A request that is cancelled during prefill ends there within 100 ms, once."""
        asked: asyncio.Task[Any] = streaming(to_worker, HELLO) if stream else calling(to_worker, CHAT, HELLO)
        sequence = await engine.asked()
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked

        await asyncio.wait_for(sequence.aborted.wait(), ABORTED_WITHIN_SECONDS)
        await sequence.closed.wait()
        assert sequence.aborts == 1

    async def test_in_mid_stream_aborts(self, to_worker: Link, engine: ControlledEngine) -> None:
        """A stream that is closed early ends the work on each of its choices within 100 ms."""
        opening = streaming(to_worker, HELLO | {"n": 2})
        one, two = await engine.asked(0), await engine.asked(1)
        one.say("Hi")
        (await opening).close()

        async with asyncio.timeout(ABORTED_WITHIN_SECONDS):
            await one.aborted.wait()
            await two.aborted.wait()
        assert (one.aborts, two.aborts) == (1, 1)

    async def test_an_abort_ends_the_stream_with_a_record(self, to_worker: Link, engine: ControlledEngine) -> None:
        """Aborting by id is for those who cannot close the stream; it says so. Unknown ids are fine."""
        opening = streaming(to_worker, HELLO, NAMED)
        sequence = await engine.asked()
        sequence.say("Hi")
        stream = await opening
        told = [await calling(to_worker, ABORT, {"request_id": name}) for name in ("mine", "unknown")]
        body = await read_to_end(stream)

        assert [reply.status for reply in told] == [200, 200]
        assert records(body)[-1]["error"]["code"] == "aborted"
        assert sequence.aborts == 1


class TestDescriptions:
    async def test_the_model_is_listed(self, to_worker: Link) -> None:
        """One model is served, with the length of its context."""
        listed = json.loads((await to_worker.get("/v1/models", PATIENT)).body)["data"]

        assert [(model["id"], model["max_model_len"]) for model in listed] == [("fake", 64)]

    async def test_the_worker_says_what_it_is(self, to_worker: Link) -> None:
        """/server_info has stock's keys and ours."""
        info = json.loads((await to_worker.get("/server_info", PATIENT)).body)

        assert len(info["disaggregated_params"]["ctx_info_endpoint"]) == 1
        assert info["packrelay"]["engine"] == "controlled"
        assert info["packrelay"]["deferred"] is True

    async def test_a_dead_engine_turns_health_to_503(self, to_worker: Link, engine: ControlledEngine) -> None:
        """Health follows the engine, and requests fail with the same status."""
        before = await to_worker.get("/health", PATIENT)
        engine.dead = True
        asked = calling(to_worker, CHAT, HELLO)
        (await engine.asked()).fail(EngineDead("gone"))

        assert [before.status, (await to_worker.get("/health", PATIENT)).status, (await asked).status] == [
            200,
            503,
            503,
        ]


class TestShutdown:
    async def test_new_requests_are_refused_and_running_ones_answered(
        self, connect: Connect, engine: ControlledEngine
    ) -> None:
        """A worker that stops tells newcomers to come back, and finishes what fits in its grace."""
        worker, link = await connect(engine, grace=5.0)
        running = calling(link, CHAT, HELLO)
        sequence = await engine.asked()
        worker.life.stop()
        while (await link.get("/health", PATIENT)).status == 200:
            pass  # It drains in its own time; health is the first to say so.
        refused = await calling(link, CHAT, HELLO)
        sequence.say("Hi", "stop")

        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert (await running).status == 200

    async def test_what_still_runs_is_told(self, connect: Connect, engine: ControlledEngine) -> None:
        """When the grace is over, streams end with an error record, not with a cut."""
        worker, link = await connect(engine, grace=0.05)
        opening = streaming(link, HELLO)
        sequence = await engine.asked()
        sequence.say("Hi")
        stream = await opening
        worker.life.stop()
        body = await read_to_end(stream)

        assert records(body)[-1]["error"]["code"] == "shutting_down"
        assert (b"[DONE]" in body, sequence.aborts) == (False, 1)


class Legs:
    """A context and a generation worker with the scripted engine, and what a gateway does between them."""

    def __init__(self, context: Link, generation: Link, key: str | None) -> None:
        self.context = context
        self.generation = generation
        self._key = key
        # Workers that have a key may ask every caller for it; whose signature is right is another question.
        self._headers = NAMED | {WORKER_AUTH_HEADER: worker_signature("a key")}

    async def first(self, path: str, body: dict[str, Any], **params: Any) -> dict[str, Any]:
        """The context leg's reply. Any: replies and hand-offs are read as a gateway does."""
        asked = {"request_type": "context_only", "disagg_request_id": 2**62 + 1, "schedule_style": 0} | params
        reply = await calling(
            self.context, path, body | {"stream": False, "disaggregated_params": asked}, self._headers
        )
        assert reply.status == 200, reply.body
        decoded: dict[str, Any] = json.loads(reply.body)
        return decoded

    def second_body(self, body: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
        """The generation leg's request."""
        params = reply["choices"][0]["disaggregated_params"]
        params |= {"request_type": "generation_only", "schedule_style": 0, "ctx_usage": reply["usage"]}
        ids = "prompt" if "prompt" in body else "prompt_token_ids"
        return body | {"disaggregated_params": params, ids: reply["prompt_token_ids"]}

    async def second(self, path: str, body: dict[str, Any]) -> Reply:
        """The generation leg's reply."""
        params = body["disaggregated_params"]
        headers = dict(self._headers)
        if self._key:
            signed = handoff_signature(self._key, params.get("ctx_info_endpoint"), params.get("encoded_opaque_state"))
            headers["x-trtllm-disagg-auth"] = signed
        return await calling(self.generation, path, body, headers)

    async def both(self, path: str, body: dict[str, Any]) -> Reply:
        """The answer through two legs."""
        return await self.second(path, self.second_body(body, await self.first(path, body)))


@pytest.fixture
async def legs(connect: Connect) -> Legs:
    """Two workers without a key."""
    _, context = await connect(create_engine("scripted", "fake", {}), role="context")
    _, generation = await connect(create_engine("scripted", "fake", {}), role="generation")
    return Legs(context, generation, None)


SAMPLED = {"max_tokens": 12, "temperature": 1.0, "seed": 7}
TWO_LEGS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, HELLO | SAMPLED),
    "one token": (CHAT, HELLO | SAMPLED | {"max_tokens": 1}),
    "logprobs": (CHAT, HELLO | SAMPLED | {"logprobs": True, "top_logprobs": 2}),
    "completions": (COMPLETIONS, PROMPT | SAMPLED),
    "stop": (COMPLETIONS, PROMPT | {"prompt": "[[text:one two three]]", "stop": "e t"}),
    "echo": (COMPLETIONS, PROMPT | SAMPLED | {"echo": True, "logprobs": 1}),
}


class TestLegs:
    @pytest.mark.parametrize(("path", "body"), TWO_LEGS.values(), ids=TWO_LEGS)
    async def test_two_legs_answer_as_one_worker(self, legs: Legs, path: str, body: dict[str, Any]) -> None:
        """Text, log probabilities, finish and usage are the same through two legs."""
        one = json.loads((await calling(legs.context, path, body, NAMED)).body)
        two = json.loads((await legs.both(path, body)).body)

        assert (two["choices"], two["usage"]) == (one["choices"], one["usage"])

    async def test_a_state_is_fetched_once(self, legs: Legs) -> None:
        """The second generation leg finds nothing, and says so in a way that a fresh attempt can cure."""
        body = legs.second_body(HELLO, await legs.first(CHAT, HELLO))
        first, second = await legs.second(CHAT, body), await legs.second(CHAT, body)

        assert (first.status, second.status, error_of(second)["code"]) == (200, 503, "handoff_failed")

    async def test_another_first_token_is_refused(self, legs: Legs) -> None:
        """The engine finds that it would have begun otherwise."""
        body = legs.second_body(HELLO, await legs.first(CHAT, HELLO))
        body["disaggregated_params"]["first_gen_tokens"] = [1]
        failed = await legs.second(CHAT, body)

        assert (failed.status, error_of(failed)["code"]) == (503, "handoff_failed")

    async def test_generation_first_waits_for_the_state(self, legs: Legs) -> None:
        """The generation leg may come first: it waits for the context leg of the same id."""
        body = PROMPT | SAMPLED
        early = {"disagg_request_id": 2**62 + 3, "ctx_request_id": 2**62 + 3, "schedule_style": 1}
        info = json.loads((await legs.context.get("/server_info", PATIENT)).body)["disaggregated_params"]
        params = early | info | {"request_type": "generation_only"}
        waiting = asyncio.create_task(legs.second(COMPLETIONS, body | {"disaggregated_params": params}))
        await legs.first(COMPLETIONS, body, **early)

        one = json.loads((await calling(legs.context, COMPLETIONS, body, NAMED)).body)
        assert json.loads((await waiting).body)["choices"] == one["choices"]

    @pytest.mark.parametrize(("key", "status"), [("a key", 200), ("another key", 400)])
    async def test_the_generation_leg_is_signed(self, connect: Connect, link: str, key: str, status: int) -> None:
        """A hand-off signed with the workers' key is taken, any other is the reference's 400."""
        workers = [
            (await connect(create_engine("scripted", "fake", {}), role=role, internal_key="a key"))[0]
            for role in ("context", "generation")
        ]
        async with AsyncExitStack() as stack:
            links: list[Link] = []
            for worker in workers:
                # The channel asks for the key itself, so the link shows the right one; the signature is what differs.
                links.append(GrpcLink(worker.url, key="a key") if link == "grpc" else HttpLink(worker.url))
                stack.push_async_callback(links[-1].close)

            assert (await Legs(links[0], links[1], key).both(CHAT, HELLO)).status == status


async def test_silence_is_noticed(to_worker: Link, engine: ControlledEngine) -> None:
    """A worker that has begun and says no more is told from one that is slow to begin, and is aborted."""
    impatient = Deadlines(connect=5, first_byte=10, idle=0.05, total=20)
    opening = asyncio.create_task(to_worker.stream(CHAT, encode_frame(HELLO | {"stream": True}), {}, impatient))
    sequence = await engine.asked()
    sequence.say("Hi")
    stream = await opening
    with pytest.raises(WorkerSilent, match="fell silent"):
        await read_to_end(stream)

    await asyncio.wait_for(sequence.aborted.wait(), ABORTED_WITHIN_SECONDS)
