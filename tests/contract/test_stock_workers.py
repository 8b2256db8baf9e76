"""Stock workers behind our gateway: their quirks do not reach clients, and both of their legs work."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tests.contract.conftest import GatewayUrl
from tests.stock import Ending, Ledger, Refusal, StockWorker

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
KEY = "a shared key"
ENDPOINT = {"ctx_info_endpoint": ["tcp://127.0.0.1:5555"]}
HELLO: dict[str, Any] = {"model": "test-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6}
PROMPT: dict[str, Any] = {"model": "test-model", "prompt": "hello", "max_tokens": 6}
BODIES = {CHAT: HELLO, COMPLETIONS: PROMPT}
PATHS = (CHAT, COMPLETIONS)

Ask = Callable[..., Awaitable[httpx2.Response]]


@dataclass
class Legs:
    """A stock context worker and a stock generation worker, and a client of the gateway in front of them."""

    context: StockWorker
    generation: StockWorker
    http: httpx2.AsyncClient
    gateway_url: GatewayUrl

    async def client(self, **settings: Any) -> Ask:
        """Ask a gateway with these settings: `ask(path, **fields)`. Any: fields of every type."""
        workers = {"context_worker": (self.context.url,), "generation_worker": (self.generation.url,)}
        url = await self.gateway_url(**workers, **settings)

        async def ask(path: str, **fields: Any) -> httpx2.Response:
            return await self.http.post(url + path, json=BODIES[path] | fields)

        return ask

    async def alone(self, path: str, **fields: Any) -> httpx2.Response:
        """What one stock worker answers by itself."""
        return await self.http.post(self.generation.url + path, json=BODIES[path] | fields)


@pytest.fixture
async def legs(gateway_url: GatewayUrl, http: httpx2.AsyncClient) -> AsyncIterator[Legs]:
    """Both with the same key."""
    ledger = Ledger()
    async with (
        StockWorker(ledger=ledger, key=KEY, server_keys=ENDPOINT) as context,
        StockWorker(ledger=ledger, key=KEY, server_keys=ENDPOINT) as generation,
    ):
        yield Legs(context, generation, http, gateway_url)


@pytest.fixture
async def stock() -> AsyncIterator[StockWorker]:
    """One stock worker for everything."""
    async with StockWorker() as worker:
        yield worker


@pytest.fixture
async def ask(stock: StockWorker, gateway_url: GatewayUrl, http: httpx2.AsyncClient) -> Ask:
    """Ask a gateway in front of it."""
    url = await gateway_url(worker=(stock.url,))

    async def post(path: str, **fields: Any) -> httpx2.Response:
        return await http.post(url + path, json=BODIES[path] | fields)

    return post


def words(reply: httpx2.Response) -> str:
    """The text of the first choice, streamed or not."""
    if reply.headers["content-type"].startswith("text/event-stream"):
        *records, terminal, rest = reply.text.split("\n\n")
        assert (terminal, rest) == ("data: [DONE]", "")
        choices = [choice for record in records for choice in json.loads(record[6:])["choices"]]
    else:
        choices = reply.json()["choices"]
    parts = [choice.get("delta") or choice.get("message") or choice for choice in choices]
    return "".join(part.get("content") or part.get("text") or "" for part in parts)


# --- quirks ---


@pytest.mark.parametrize("path", PATHS)
async def test_nothing_follows_the_terminal(path: str, stock: StockWorker, ask: Ask) -> None:
    """A metrics event after [DONE] is cut off."""
    stock.behaviour.perf_metrics = True
    reply = await ask(path, stream=True)

    assert reply.content.endswith(b"data: [DONE]\n\n")
    assert b"perf_metrics" not in reply.content


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("ending", [Ending.FAILURE, Ending.VANISH, Ending.CUT])
async def test_broken_stream_ends_with_an_error_record(path: str, ending: Ending, stock: StockWorker, ask: Ask) -> None:
    """However a stock worker's stream breaks, the client gets one error record, and no [DONE]."""
    stock.behaviour.ending, stock.behaviour.tokens_before_ending = ending, 2
    reply = await ask(path, stream=True)
    *records, last, rest = reply.content.split(b"\n\n")

    assert set(json.loads(last.removeprefix(b"data: "))["error"]) == {"message", "type", "param", "code"}
    assert all(b'"error"' not in record and json.loads(record[6:]) for record in records)
    assert (b"[DONE]" in reply.content, rest) == (False, b"")


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (Refusal.validation("a sentence of theirs"), 400),
        (Refusal.internal("a sentence of theirs"), 400),
        (Refusal.bare_app(), 422),
        (Refusal(500, b"Internal Server Error", "text/plain"), 502),
        (Refusal.fatal(), 502),
        (Refusal(429, b'{"detail": "busy"}', headers={"retry-after": "3"}), 429),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refusal_becomes_the_error_object(
    refusal: Refusal, status: int, stream: bool, stock: StockWorker, ask: Ask
) -> None:
    """Whatever shape a stock worker's error has, its client gets the OpenAI object, streamed or not."""
    stock.behaviour.refusal = refusal
    reply = await ask(CHAT, stream=stream)

    assert reply.status_code in {status, 400 if status == 422 else status}
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    if b"theirs" in refusal.body:
        assert reply.json()["error"]["message"] == "a sentence of theirs"


async def test_worker_that_vanishes_once_is_asked_again(stock: StockWorker, gateway_url: GatewayUrl) -> None:
    """A request whose worker is lost before a byte of its answer goes to another one."""
    stock.behaviour.vanish_before_reply = True
    async with StockWorker() as other, httpx2.AsyncClient() as http:
        url = await gateway_url(worker=(stock.url, other.url), router="round_robin")
        replies = [await http.post(url + CHAT, json=HELLO) for _ in range(2)]

    assert [reply.status_code for reply in replies] == [200, 200]
    assert len(other.requests) == 2
    assert stock.requests


# --- two legs ---


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("style", ["context_first", "generation_first"])
async def test_two_legs_answer_what_one_worker_does(path: str, stream: bool, style: str, legs: Legs) -> None:
    """Signed, echoed exactly, in either order: the generation worker takes the hand-off, and the answer is whole."""
    ask = await legs.client(internal_key=KEY, schedule_style=style)
    reply = await ask(path, stream=stream)

    assert words(reply) == words(await legs.alone(path))
    assert len(legs.context.requests) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_context_leg_is_the_request_and_four_fields(path: str, legs: Legs) -> None:
    """The context leg is the client's request but for the hand-off, the stream, and the newer name of a chat's limit."""
    await (await legs.client(internal_key=KEY))(path, stream=True, stream_options={"include_usage": True}, stop=["zzz"])
    sent = legs.context.requests[0].decoded()
    params = sent.pop("disaggregated_params")
    limit = "max_completion_tokens" if path == CHAT else "max_tokens"

    assert sent.pop(limit) == 6
    assert sent == {name: value for name, value in BODIES[path].items() if name != "max_tokens"} | {
        "stream": False,
        "stream_options": None,
        "stop": ["zzz"],
    }
    assert (params["request_type"], params["schedule_style"]) == ("context_only", 0)
    assert 2**40 <= params["disagg_request_id"] < 2**63


async def test_every_request_has_its_own_id(legs: Legs) -> None:
    """Ids are not used twice."""
    ask = await legs.client(internal_key=KEY)
    for _ in range(5):
        await ask(COMPLETIONS)
    ids = [request.decoded()["disaggregated_params"]["disagg_request_id"] for request in legs.context.requests]

    assert len(set(ids)) == 5


async def test_prompt_ids_cross_as_the_worker_wrote_them(legs: Legs) -> None:
    """A chat's ids are asked for and relayed in base64, beside its messages; a completion's become its prompt."""
    ask = await legs.client(internal_key=KEY)
    await ask(CHAT)
    await ask(COMPLETIONS)
    chat, completion = (request.decoded() for request in legs.generation.requests)

    assert isinstance(chat["prompt_token_ids_b64"], str)
    assert chat.get("prompt_token_ids") is None
    assert chat["messages"] == HELLO["messages"]
    assert completion["prompt"] == list(b"hello")


async def test_replaced_id_is_gone_on_with(legs: Legs) -> None:
    """A context worker may answer with another id; the generation leg has that one."""
    legs.context.behaviour.replaced_disagg_id = 2**62 + 5
    reply = await (await legs.client(internal_key=KEY))(COMPLETIONS)

    assert reply.status_code == 200
    assert legs.generation.requests[0].decoded()["disaggregated_params"]["disagg_request_id"] == 2**62 + 5


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_answer_that_ends_in_the_context_leg_is_delivered_whole(path: str, stream: bool, legs: Legs) -> None:
    """The context worker's text is the answer, also for a client that streams, without the hand-off's fields."""
    legs.context.behaviour.early_finish = True
    reply = await (await legs.client(internal_key=KEY))(path, stream=stream)
    first = (await legs.alone(path, max_tokens=1)).json()["choices"][0]

    assert words(reply) == (first.get("text") or first["message"]["content"])
    assert b"disaggregated_params" not in reply.content
    assert b"prompt_token_ids" not in reply.content
    assert len(legs.generation.requests) == 1  # the one that was asked alone


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_counts_each_leg_once(stream: bool, legs: Legs) -> None:
    """Prompt and cached tokens are the context leg's, completion tokens the generation leg's."""
    legs.context.behaviour.cached_tokens = 3
    options = {"stream_options": {"include_usage": True}} if stream else {}
    reply = await (await legs.client(internal_key=KEY))(COMPLETIONS, stream=stream, ignore_eos=True, **options)
    record = json.loads(reply.text.split("\n\n")[-3][6:]) if stream else reply.json()

    assert record["usage"] == {
        "prompt_tokens": 5,
        "total_tokens": 11,
        "completion_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


async def test_unsigned_generation_leg_is_refused_by_the_worker(legs: Legs) -> None:
    """A gateway without the key cannot hand over to workers that have one, and the client is told so."""
    reply = await (await legs.client())(COMPLETIONS)

    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == "Invalid internal disaggregated request authentication"


@pytest.mark.parametrize("field", ["disaggregated_params", "prompt_token_ids", "prompt_token_ids_b64"])
async def test_handoff_from_outside_is_refused(field: str, legs: Legs) -> None:
    """No client speaks for a worker."""
    ask = await legs.client(internal_key=KEY)
    value: Any = {"request_type": "generation_only"} if field == "disaggregated_params" else [1]
    reply = await ask(CHAT, **{field: "AQAAAA==" if field.endswith("b64") else value})

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
    assert legs.context.requests == []


@pytest.mark.parametrize("lost", ["context", "generation"])
async def test_lost_leg_is_an_error_and_the_next_request_works(lost: str, legs: Legs) -> None:
    """A worker of either leg that vanishes before its answer gives the client the error object; then all is well again."""
    ask = await legs.client(internal_key=KEY, retries=0)
    worker: StockWorker = getattr(legs, lost)
    worker.behaviour.vanish_before_reply = True
    reply = await ask(COMPLETIONS)
    worker.behaviour.vanish_before_reply = False

    assert (reply.status_code, set(reply.json()["error"])) == (502, {"message", "type", "param", "code"})
    assert (await ask(COMPLETIONS)).status_code == 200
