"""The worker over real sockets: what clients, gateways and other workers see."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Self

import httpx2
import msgspec
import pytest

from schemas.codec import decode_token_ids, encode_frame
from schemas.disagg import handoff_signature
from tests.fakes import ControlledEngine
from tests.worker_rig import PATIENCE_SECONDS, Worker, serving
from worker.engines import create_engine
from worker.engines.base import EngineDead, EngineRefused

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TAGGED = {"X-TRTLLM-Msgpack": "1", "Content-Type": "application/json"}
HELLO: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hello"}]}
PROMPT: dict[str, Any] = {"model": "fake", "prompt": "hello"}
DONE = b"data: [DONE]\n\n"
ABORTED_WITHIN_SECONDS = 0.1
START_SECONDS = 20.0


@pytest.fixture
def engine() -> ControlledEngine:
    return ControlledEngine()


@pytest.fixture
async def worker(engine: ControlledEngine) -> AsyncIterator[Worker]:
    async with serving(engine) as worker:
        yield worker


@pytest.fixture
async def http(worker: Worker) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=worker.url) as client:
        yield client


def posting(http: httpx2.AsyncClient, path: str, **request: Any) -> asyncio.Task[httpx2.Response]:
    """A request on its way. Any: what httpx takes."""
    return asyncio.create_task(http.post(path, **request))


def records(body: bytes) -> list[Any]:
    """The JSON of every SSE record before the terminal. Any: chunks are read as a client does."""
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]


async def metric(http: httpx2.AsyncClient, name: str) -> float:
    """The value of a metric without labels."""
    lines = (await http.get("/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"packrelay_worker_{name} "))


class TestAnswers:
    @pytest.mark.parametrize(
        ("headers", "encode"), [({}, msgspec.json.encode), (TAGGED, encode_frame)], ids=["json", "msgpack"]
    )
    async def test_a_chat_request_is_answered_in_json(
        self, http: httpx2.AsyncClient, engine: ControlledEngine, headers: dict[str, str], encode: Any
    ) -> None:
        """Whichever way it was asked, the answer is a chat completion with usage."""
        asked = posting(http, CHAT, content=encode(HELLO), headers=headers)
        (await engine.asked()).say("Hi", "stop")
        reply = (await asked).json()

        assert reply["choices"][0]["message"]["content"] == "Hi"
        assert reply["usage"]["total_tokens"] == 7
        assert reply["id"].startswith("chatcmpl-")

    async def test_an_answer_is_msgpack_when_asked_for(
        self, http: httpx2.AsyncClient, engine: ControlledEngine
    ) -> None:
        """With `Accept: application/msgpack` the same map comes as one msgpack value."""
        asked = posting(http, COMPLETIONS, json=PROMPT, headers={"Accept": "application/msgpack"})
        (await engine.asked()).say("Hi", "stop")
        response = await asked

        assert response.headers["content-type"] == "application/msgpack"
        assert msgspec.msgpack.decode(response.content)["choices"][0]["text"] == "Hi"

    async def test_the_deferred_form_is_read(self, http: httpx2.AsyncClient, engine: ControlledEngine) -> None:
        """Messages may come as the client's JSON inside the frame."""
        frame = encode_frame({"model": "fake", "messages": json.dumps(HELLO["messages"]).encode()})
        asked = posting(http, CHAT, content=frame, headers=TAGGED)
        sequence = await engine.asked()
        sequence.say("Hi", "stop")

        assert (await asked).status_code == 200
        assert sequence.request.prompt == list(b"hello")

    async def test_our_own_id_names_the_answer(self, http: httpx2.AsyncClient, engine: ControlledEngine) -> None:
        """The gateway's request id becomes the reply's; an unfit one is replaced."""
        for number, (given, kept) in enumerate((("abc-1", True), ("x" * 129, False), ("a b", False))):
            asked = posting(http, CHAT, json=HELLO, headers={"X-Packrelay-Request-Id": given})
            (await engine.asked(number)).say("Hi", "stop")

            assert ((await asked).json()["id"] == f"chatcmpl-{given}") is kept

    async def test_a_stream_is_records_and_one_terminal(
        self, http: httpx2.AsyncClient, engine: ControlledEngine
    ) -> None:
        """Chunks arrive as they are made; the finish, the usage and `[DONE]` end the stream."""
        body = HELLO | {"stream": True, "stream_options": {"include_usage": True}}
        async with AsyncExitStack() as stack:
            opening = asyncio.ensure_future(stack.enter_async_context(http.stream("POST", CHAT, json=body)))
            sequence = await engine.asked()
            sequence.say("Hi")
            response = await opening
            chunks = response.aiter_bytes()
            first = await anext(chunks)
            sequence.say("!", "stop")
            rest = b"".join([chunk async for chunk in chunks])

        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert [record["choices"][0]["delta"]["content"] for record in records(first)] == ["Hi"]
        assert rest.endswith(DONE)
        assert [len(record["choices"]) for record in records(rest)] == [1, 0]

    async def test_tokens_that_are_ready_are_one_write(
        self, http: httpx2.AsyncClient, engine: ControlledEngine
    ) -> None:
        """What several choices have said by the same moment leaves in one piece."""
        asked = posting(http, CHAT, json=HELLO | {"n": 2, "stream": True})
        for number in range(2):
            (await engine.asked(number)).say("Hi", "stop")
        body = (await asked).content

        assert {record["choices"][0]["index"] for record in records(body)} == {0, 1}
        assert body.count(b"data: [DONE]") == 1


class TestErrors:
    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/nowhere", 404),
            ("GET", "/v1/models/", 404),
            ("GET", CHAT, 405),
            ("POST", "/health", 405),
            ("GET", "/docs", 404),
            ("GET", "/_packrelay/handoff/none", 404),
            ("POST", CHAT, 400),
            ("POST", "/_packrelay/abort", 400),
        ],
    )
    async def test_every_error_is_the_openai_object(
        self, http: httpx2.AsyncClient, method: str, path: str, status: int
    ) -> None:
        """Whoever finds the fault, framework or worker, the body has message, type, param and code."""
        response = await http.request(method, path)

        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    async def test_another_model_is_not_found(self, http: httpx2.AsyncClient) -> None:
        """Asking for a model that is not served is a 404 with the code clients look for."""
        response = await http.post(CHAT, json=HELLO | {"model": "other"})

        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_refusal_is_a_status_even_for_a_stream(
        self, http: httpx2.AsyncClient, engine: ControlledEngine, stream: bool
    ) -> None:
        """What is known before the first token is never hidden in a stream."""
        asked = posting(http, CHAT, json=HELLO | {"stream": stream})
        (await engine.asked()).fail(EngineRefused("No such form.", "response_format"))
        response = await asked

        assert (response.status_code, response.json()["error"]["param"]) == (400, "response_format")
        assert response.headers["content-type"] == "application/json"

    async def test_a_prompt_too_long_is_a_400(self, http: httpx2.AsyncClient) -> None:
        """A streamed request that does not fit the context is refused as any other."""
        response = await http.post(COMPLETIONS, json=PROMPT | {"prompt": "x" * 99, "stream": True})

        assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")

    async def test_a_failure_in_mid_stream_is_a_record(
        self, http: httpx2.AsyncClient, engine: ControlledEngine
    ) -> None:
        """After the first bytes, an error is the last record, and there is no `[DONE]`."""
        async with AsyncExitStack() as stack:
            request = http.stream("POST", CHAT, json=HELLO | {"stream": True})
            opening = asyncio.ensure_future(stack.enter_async_context(request))
            sequence = await engine.asked()
            sequence.say("Hi")
            response = await opening
            sequence.fail(RuntimeError("/srv/secret.py"))
            body = b"".join([chunk async for chunk in response.aiter_bytes()])

        *_, last = records(body)
        assert last["error"]["code"] == "engine_failed"
        assert b"[DONE]" not in body
        assert b"secret" not in body

    async def test_a_body_too_large_is_a_413(self, engine: ControlledEngine) -> None:
        """The limit is the operator's."""
        async with serving(engine, max_body_bytes=100) as worker, httpx2.AsyncClient(base_url=worker.url) as http:
            response = await http.post(CHAT, content=b" " * 101)

        assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")

    async def test_an_overloaded_worker_says_when_to_come_back(self, engine: ControlledEngine) -> None:
        """One request too many is a 429 with Retry-After."""
        async with serving(engine, max_requests=1) as worker, httpx2.AsyncClient(base_url=worker.url) as http:
            held = posting(http, CHAT, json=HELLO)
            sequence = await engine.asked()
            response = await http.post(CHAT, json=HELLO)
            sequence.say("Hi", "stop")
            await held

        assert (response.status_code, response.headers["retry-after"]) == (429, "1")

    async def test_a_deadline_is_kept(self, http: httpx2.AsyncClient, engine: ControlledEngine) -> None:
        """When the gateway's time is over the answer is a 504, and the engine stops."""
        response = await http.post(CHAT, json=HELLO, headers={"X-Packrelay-Deadline-Ms": "20"})

        assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline")
        assert engine.sequences[0].aborts == 1

    async def test_a_deadline_that_is_no_number_is_a_400(self, http: httpx2.AsyncClient) -> None:
        """It is not silently taken as none."""
        response = await http.post(CHAT, json=HELLO, headers={"X-Packrelay-Deadline-Ms": "soon"})

        assert response.status_code == 400


class TestDisconnect:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_leaving_before_the_first_token_aborts(
        self, worker: Worker, http: httpx2.AsyncClient, engine: ControlledEngine, stream: bool
    ) -> None:
        """A client that hangs up during prefill ends it within 100 ms, once."""
        body = json.dumps(HELLO | {"stream": stream}).encode()
        _, writer = await asyncio.open_connection(worker.host, worker.port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        sequence = await engine.asked()
        writer.close()

        async with asyncio.timeout(ABORTED_WITHIN_SECONDS):
            await sequence.aborted.wait()
        await sequence.closed.wait()
        assert sequence.aborts == 1
        assert await metric(http, "in_flight") == 0

    async def test_leaving_in_mid_stream_aborts(
        self, worker: Worker, http: httpx2.AsyncClient, engine: ControlledEngine
    ) -> None:
        """A stream closed early by its client ends the engine's work within 100 ms."""
        async with AsyncExitStack() as stack:
            request = http.stream("POST", CHAT, json=HELLO | {"stream": True, "n": 2})
            opening = asyncio.ensure_future(stack.enter_async_context(request))
            one, two = await engine.asked(0), await engine.asked(1)
            one.say("Hi")
            await opening

        async with asyncio.timeout(ABORTED_WITHIN_SECONDS):
            await one.aborted.wait()
            await two.aborted.wait()
        assert (one.aborts, two.aborts) == (1, 1)

    async def test_an_abort_ends_the_stream_with_a_record(
        self, http: httpx2.AsyncClient, engine: ControlledEngine
    ) -> None:
        """Aborting by id is for those who cannot close the connection; the stream says so."""
        asked = posting(http, CHAT, json=HELLO | {"stream": True}, headers={"X-Packrelay-Request-Id": "mine"})
        sequence = await engine.asked()
        sequence.say("Hi")
        aborted = await http.post("/_packrelay/abort", content=encode_frame({"request_id": "mine"}), headers=TAGGED)
        body = (await asked).content

        assert aborted.status_code == 200
        assert records(body)[-1]["error"]["code"] == "aborted"
        assert sequence.aborts == 1

    async def test_aborting_the_unknown_succeeds(self, http: httpx2.AsyncClient) -> None:
        """There is nothing to do, so it is done."""
        assert (await http.post("/_packrelay/abort", json={"request_id": "unknown"})).status_code == 200


class TestDescriptions:
    async def test_the_model_is_listed_and_found(self, http: httpx2.AsyncClient) -> None:
        """One model is served; its card is the same in the list and alone."""
        listed = (await http.get("/v1/models")).json()["data"]

        assert [(await http.get("/v1/models/fake")).json()] == listed
        assert (listed[0]["id"], listed[0]["max_model_len"]) == ("fake", 64)

    async def test_the_worker_says_what_it_is(self, worker: Worker, http: httpx2.AsyncClient) -> None:
        """/server_info has stock's keys and ours."""
        info = (await http.get("/server_info")).json()

        assert info["disaggregated_params"] == {"ctx_info_endpoint": [worker.url]}
        assert info["packrelay"] | {"version": ""} == {
            "frames": 1,
            "deferred": True,
            "grpc_port": None,
            "model": "fake",
            "engine": "controlled",
            "version": "",
            "role": "both",
            "max_model_len": 64,
        }

    async def test_a_dead_engine_turns_health_to_503(self, http: httpx2.AsyncClient, engine: ControlledEngine) -> None:
        """Health follows the engine, and requests fail with the same status."""
        assert (await http.get("/health")).status_code == 200
        engine.dead = True
        asked = posting(http, CHAT, json=HELLO)
        (await engine.asked()).fail(EngineDead("gone"))

        assert (await http.get("/health")).status_code == 503
        assert (await asked).status_code == 503

    async def test_health_generate_makes_a_token(self, http: httpx2.AsyncClient, engine: ControlledEngine) -> None:
        """It is 200 when the engine generates, 500 when it does not."""
        asked = asyncio.create_task(http.get("/health_generate"))
        (await engine.asked()).say("x", "length")
        assert (await asked).status_code == 200
        asked = asyncio.create_task(http.get("/health_generate"))
        (await engine.asked(1)).fail(RuntimeError())
        assert (await asked).status_code == 500

    async def test_requests_are_counted(self, http: httpx2.AsyncClient, engine: ControlledEngine) -> None:
        """Every request ends in one series of a closed set; tokens add up."""
        asked = posting(http, CHAT, json=HELLO)
        (await engine.asked()).say("Hi", "stop", cached_tokens=3)
        await asked
        await http.post(CHAT, content=b"{")
        text = (await http.get("/metrics")).text

        assert 'packrelay_worker_requests_total{endpoint="chat",outcome="ok"} 1.0' in text
        assert await metric(http, "completion_tokens_total") == 2
        assert await metric(http, "cached_tokens_total") == 3
        assert await metric(http, "decode_failures_total") == 1


class TestShutdown:
    async def test_health_and_new_requests_hear_of_it_first(self, engine: ControlledEngine) -> None:
        """While a request runs on, health is 503 and others are told to come back."""
        async with serving(engine, grace=5.0) as worker, httpx2.AsyncClient(base_url=worker.url) as client:
            running = posting(client, CHAT, json=HELLO)
            sequence = await engine.asked()
            worker.life.stop()
            health, refused = await client.get("/health"), await client.post(CHAT, json=HELLO)
            sequence.say("Hi", "stop")
            answered = await running
            await worker.running

        assert (health.status_code, refused.status_code, refused.headers["retry-after"]) == (503, 503, "1")
        assert answered.status_code == 200

    @pytest.mark.parametrize("grace", [0.05, 60.0], ids=["grace over", "second signal"])
    async def test_what_still_runs_is_told(self, engine: ControlledEngine, grace: float) -> None:
        """When the grace is over, or in a hurry, streams end with an error record and the engine is closed."""
        async with serving(engine, grace=grace) as worker, httpx2.AsyncClient(base_url=worker.url) as client:
            running = posting(client, CHAT, json=HELLO | {"stream": True})
            sequence = await engine.asked()
            sequence.say("Hi")
            worker.life.stop()
            if grace > 1:
                worker.life.stop()
            body = (await running).content
            await worker.running

        assert records(body)[-1]["error"]["code"] == "shutting_down"
        assert b"[DONE]" not in body
        assert (sequence.aborts, engine.closed) == (1, True)

    async def test_a_signal_ends_the_process_in_order(self) -> None:
        """SIGTERM: the stream that cannot finish is told, and the exit status is 0."""
        async with Process("--grace", "0.05") as process, httpx2.AsyncClient(base_url=process.url) as client:
            body = PROMPT | {"prompt": "[[text:hello]] [[silence_after=2]]", "stream": True}
            async with client.stream("POST", COMPLETIONS, json=body) as response:
                chunks = response.aiter_bytes()
                first = await anext(chunks)
                process.signal(signal.SIGTERM)
                rest = b"".join([chunk async for chunk in chunks])
            status = await process.ended()

        assert records(first)[0]["object"] == "text_completion"
        assert records(rest)[-1]["error"]["code"] == "shutting_down"
        assert status == 0

    async def test_a_second_signal_does_not_wait(self) -> None:
        """Ctrl-C twice: the grace is skipped, and the exit status is 0 still."""
        async with Process("--grace", "600") as process, httpx2.AsyncClient(base_url=process.url) as client:
            asked = posting(client, COMPLETIONS, json=PROMPT | {"prompt": "[[text:hello]] [[silence_after=2]]"})
            await until_in_flight(client)
            process.signal(signal.SIGINT)
            await until_unhealthy(client)
            process.signal(signal.SIGINT)
            answered, status = await asked, await process.ended()

        assert (answered.status_code, status) == (503, 0)


class Process:
    """A packrelay-worker of its own, with the scripted engine, on a free port."""

    def __init__(self, *flags: str) -> None:
        self.url = ""
        self._flags = ("--engine", "scripted", "--model", "fake", "--port", "0", *flags)

    async def __aenter__(self) -> Self:
        command = [sys.executable, "-P", "-m", "worker.entry", *self._flags]
        self._process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(START_SECONDS):
                self.url = await self._listening()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _listening(self) -> str:
        """The address from the log, which is JSON lines."""
        assert self._process.stderr
        while line := await self._process.stderr.readline():
            event = json.loads(line)
            if event["event"] == "worker.listening":
                return f"http://{event['host']}:{event['port']}"
        raise AssertionError("The worker did not start.")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        """The exit status, once there is one."""
        await asyncio.wait_for(self._process.communicate(), PATIENCE_SECONDS)
        return self._process.returncode or 0

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()


async def until_in_flight(http: httpx2.AsyncClient) -> None:
    """Return once the worker is serving a request."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await metric(http, "in_flight") == 0:
            pass


async def until_unhealthy(http: httpx2.AsyncClient) -> None:
    """Return once the worker says that it is stopping."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await http.get("/health")).status_code == 200:
            pass


class Legs:
    """Two workers with the scripted engine, and what an orchestrator does between them."""

    def __init__(self, context: Worker, generation: Worker, http: httpx2.AsyncClient, key: str | None) -> None:
        self.context = context
        self.generation = generation
        self.http = http
        self._key = key

    async def first(self, path: str, body: dict[str, Any], **params: Any) -> dict[str, Any]:
        """The context leg's reply. Any: replies and hand-offs are read as an orchestrator does."""
        asked = {"request_type": "context_only", "disagg_request_id": 2**62 + 1, "schedule_style": 0} | params
        response = await self.http.post(
            self.context.url + path,
            json=body | {"stream": False, "stream_options": None, "disaggregated_params": asked},
        )
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        return reply

    def second_body(self, body: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
        """The generation leg's request, as trtllm-wire.md 1.4 makes it."""
        params = reply["choices"][0]["disaggregated_params"]
        params |= {"request_type": "generation_only", "schedule_style": 0, "ctx_usage": reply["usage"]}
        ids = "prompt" if "prompt" in body else "prompt_token_ids"
        return body | {"disaggregated_params": params, ids: reply["prompt_token_ids"]}

    async def second(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        """The generation leg's reply."""
        params = body["disaggregated_params"]
        headers = {}
        if self._key:
            signed = handoff_signature(self._key, params.get("ctx_info_endpoint"), params.get("encoded_opaque_state"))
            headers["x-trtllm-disagg-auth"] = signed
        return await self.http.post(self.generation.url + path, json=body, headers=headers)

    async def both(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        """The answer through two legs."""
        return await self.second(path, self.second_body(body, await self.first(path, body)))


@pytest.fixture(params=[None, "a key"], ids=["unsigned", "signed"])
async def legs(request: pytest.FixtureRequest) -> AsyncIterator[Legs]:
    async with AsyncExitStack() as stack:
        # As our gateway: what a worker answers a stock orchestrator is narrower (see test_stock_orchestrator.py).
        http = await stack.enter_async_context(httpx2.AsyncClient(headers={"X-Packrelay-Request-Id": "legs"}))
        context, generation = [
            await stack.enter_async_context(
                serving(create_engine("scripted", "fake", {}), internal_key=request.param, role=role)
            )
            for role in ("context", "generation")
        ]
        yield Legs(context, generation, http, request.param)


async def alone(legs: Legs, path: str, body: dict[str, Any]) -> httpx2.Response:
    """The answer of one worker."""
    return await legs.http.post(legs.context.url + path, json=body)


SAMPLED = {"max_tokens": 12, "temperature": 1.0, "seed": 7}


class TestLegs:
    @pytest.mark.parametrize(
        ("path", "body"),
        [
            (CHAT, HELLO | SAMPLED),
            (CHAT, HELLO | SAMPLED | {"max_tokens": 1}),
            (CHAT, HELLO | SAMPLED | {"logprobs": True, "top_logprobs": 2}),
            (COMPLETIONS, PROMPT | SAMPLED),
            (COMPLETIONS, PROMPT | {"prompt": "[[text:one two three]]", "stop": "e t"}),
            (COMPLETIONS, PROMPT | SAMPLED | {"echo": True, "logprobs": 1}),
            (COMPLETIONS, PROMPT | {"max_tokens": 0, "echo": True, "logprobs": 1}),
            (COMPLETIONS, PROMPT | {"max_tokens": 0, "echo": True}),
        ],
        ids=["chat", "one token", "logprobs", "completions", "stop", "echo", "echo only", "echo of text"],
    )
    async def test_two_legs_answer_as_one_worker(self, legs: Legs, path: str, body: dict[str, Any]) -> None:
        """Text, log probabilities, finish and usage are the same through two legs."""
        one = (await alone(legs, path, body)).json()
        two = (await legs.both(path, body)).json()

        assert two["choices"] == one["choices"]
        assert two["usage"] == one["usage"]

    async def test_two_legs_stream_as_one_worker(self, legs: Legs) -> None:
        """The first token comes out of the generation leg, in its stream."""
        body = HELLO | SAMPLED | {"stream": True}
        one, two = (await alone(legs, CHAT, body)).content, (await legs.both(CHAT, body)).content

        texts = [
            "".join(record["choices"][0]["delta"].get("content", "") for record in records(each)) for each in (one, two)
        ]
        assert texts[0] == texts[1] != ""
        assert two.endswith(DONE)

    async def test_ids_are_base64_where_asked_for(self, legs: Legs) -> None:
        """Chat has a field for the packed form, and the plain one is null then."""
        reply = await legs.first(CHAT, HELLO, return_prompt_token_ids_b64=True)
        plain = await legs.first(CHAT, HELLO)

        assert reply["prompt_token_ids"] is None
        assert decode_token_ids(reply["prompt_token_ids_b64"]) == plain["prompt_token_ids"]

    async def test_a_state_is_fetched_once(self, legs: Legs) -> None:
        """The second generation leg finds nothing, and says so in a way that a fresh attempt can cure."""
        body = legs.second_body(HELLO, await legs.first(CHAT, HELLO))
        first, second = await legs.second(CHAT, body), await legs.second(CHAT, body)

        assert first.status_code == 200
        assert (second.status_code, second.json()["error"]["code"]) == (503, "handoff_failed")
        metrics = (await legs.http.get(legs.generation.url + "/metrics")).text
        assert 'packrelay_worker_handoff_errors_total{reason="lost"} 1.0' in metrics

    async def test_another_prompt_is_not_continued(self, legs: Legs) -> None:
        """A state goes on only with the prompt it stands for; it is not even fetched for another."""
        body = legs.second_body(PROMPT, await legs.first(COMPLETIONS, PROMPT))
        refused = await legs.second(COMPLETIONS, body | {"prompt": body["prompt"] + [1]})

        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "handoff_failed")
        assert (await legs.second(COMPLETIONS, body)).status_code == 200

    async def test_another_first_token_is_a_counted_failure(self, legs: Legs) -> None:
        """The engine finds that it would have begun otherwise."""
        body = legs.second_body(HELLO, await legs.first(CHAT, HELLO))
        body["disaggregated_params"]["first_gen_tokens"] = [1]
        failed = await legs.second(CHAT, body)

        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "handoff_failed")
        metrics = (await legs.http.get(legs.generation.url + "/metrics")).text
        assert 'packrelay_worker_handoff_errors_total{reason="engine"} 1.0' in metrics

    @pytest.mark.parametrize("finished", [False, True], ids=["pending", "finished by its first token"])
    async def test_generation_first_waits_for_the_state(self, legs: Legs, finished: bool) -> None:
        """The generation leg may come first: it waits for the context leg of the same id, whatever that leg finds."""
        body = PROMPT | SAMPLED | ({"prompt": "[[text:]]"} if finished else {})
        early = {"disagg_request_id": 2**62 + 3, "ctx_request_id": 2**62 + 3, "schedule_style": 1}
        info = (await legs.http.get(legs.context.url + "/server_info")).json()["disaggregated_params"]
        params = early | info | {"request_type": "generation_only"}
        waiting = asyncio.create_task(legs.second(COMPLETIONS, body | {"disaggregated_params": params}))
        await legs.first(COMPLETIONS, body, **early)

        one, two = (await alone(legs, COMPLETIONS, body)).json(), (await waiting).json()
        assert two["choices"] == one["choices"]
        assert two["usage"] == one["usage"]

    async def test_nothing_is_left_behind(self, legs: Legs) -> None:
        """After both legs no state is kept, and nothing is in flight."""
        await legs.both(CHAT, HELLO)
        metrics = (await legs.http.get(legs.context.url + "/metrics")).text

        assert "packrelay_worker_states 0.0" in metrics
        assert "packrelay_worker_state_bytes 0.0" in metrics
        assert "packrelay_worker_handoffs_sent_total 1.0" in metrics


class TestKey:
    @pytest.fixture
    async def keyed(self) -> AsyncIterator[Legs]:
        """Two workers with a key, and an orchestrator with another."""
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(httpx2.AsyncClient())
            context, generation = [
                await stack.enter_async_context(serving(create_engine("scripted", "fake", {}), internal_key="a key"))
                for _ in range(2)
            ]
            yield Legs(context, generation, http, "another key")

    async def test_an_unsigned_generation_leg_is_refused(self, keyed: Legs) -> None:
        """A wrong signature is the reference's 400."""
        refused = await keyed.both(CHAT, HELLO)

        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == "Invalid internal disaggregated request authentication"

    async def test_an_unsigned_fetch_is_refused(self, keyed: Legs) -> None:
        """Who does not hold the key learns nothing of handles, known or not."""
        response = await keyed.http.get(f"{keyed.context.url}/_packrelay/handoff/any")

        assert response.status_code == 401
