"""What real clients send goes through the gateway to a stock worker, and comes back as each of them expects it."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.contract.conftest import GatewayUrl
from tests.contract.material import RecordedRequest, hard_bodies, recorded, validator
from tests.stock import Ledger, StockWorker

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
GENERATING = (CHAT, COMPLETIONS)
NOT_OURS = {"host", "content-length", "connection"}
NOT_SERVED = ("/v1/embeddings", "/v1/responses", "/v9/")

STOCK_HABITS = {
    "$.choices[N].message",  # has no `refusal`
    "$.choices[N].logprobs",  # has no `refusal` either; with echo, its first token has null
    "$.usage.prompt_tokens_details",  # null when nothing was cached
}
"""Where a stock worker's reply is not what the API document says; it reaches clients as the worker wrote it."""

REQUESTS = recorded()
ACCEPTED = [name for name, request in REQUESTS.items() if not request.path.startswith(NOT_SERVED)]
GENERATED = [name for name in ACCEPTED if REQUESTS[name].path in GENERATING]
REFUSED = [name for name in REQUESTS if name not in ACCEPTED]


@pytest.fixture
async def stock() -> AsyncIterator[StockWorker]:
    """One stock worker."""
    async with StockWorker() as worker:
        yield worker


@pytest.fixture
async def aggregated(stock: StockWorker, gateway_url: GatewayUrl) -> str:
    """A gateway in front of one stock worker."""
    return await gateway_url(worker=(stock.url,))


@pytest.fixture
async def disaggregated(stock: StockWorker, gateway_url: GatewayUrl) -> AsyncIterator[str]:
    """A gateway in front of a stock context worker and a stock generation worker."""
    async with StockWorker(ledger=stock.ledger) as generation:
        yield await gateway_url(context_worker=(stock.url,), generation_worker=(generation.url,))


async def replay(http: httpx2.AsyncClient, url: str, request: RecordedRequest) -> httpx2.Response:
    """Send a recorded request as its client did."""
    headers = [(name, value) for name, value in request.headers if name.lower() not in NOT_OURS]
    body = b"" if request.body is None else json.dumps(request.body).encode()
    return await http.request(request.method, url + request.path, headers=headers, content=body)


def events(body: bytes) -> list[dict[str, Any]]:
    """The records of a stream, which must end with its terminal and hold nothing else."""
    *parts, terminal, rest = body.split(b"\n\n")
    assert (terminal, rest) == (b"data: [DONE]", b"")
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


def text_of(request: RecordedRequest, reply: httpx2.Response) -> list[str]:
    """What each choice of a reply says: text, or the arguments of its call."""
    records = events(reply.content) if request.body.get("stream") else [reply.json()]
    said: dict[int, str] = {}
    for choice in (choice for record in records for choice in record["choices"]):
        part = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        calls = [call["function"].get("arguments", "") for call in part.get("tool_calls") or []]
        said[choice["index"]] = said.get(choice["index"], "") + (part.get("content") or "") + "".join(calls)
    return [said[index] for index in sorted(said)]


@pytest.mark.parametrize("name", ACCEPTED)
async def test_recorded_request_is_accepted(
    name: str, aggregated: str, stock: StockWorker, http: httpx2.AsyncClient
) -> None:
    """Every request of every client is answered, and every body a worker got is tagged msgpack."""
    reply = await replay(http, aggregated, REQUESTS[name])

    assert reply.status_code == 200, reply.text
    assert all(request.tagged for request in stock.requests)
    assert len(stock.requests) == (REQUESTS[name].path in GENERATING)


@pytest.mark.parametrize("name", GENERATED)
async def test_recorded_request_is_answered_as_asked(name: str, aggregated: str, http: httpx2.AsyncClient) -> None:
    """As many choices as were asked for, each with text; streamed or whole as asked; usage where it was asked for."""
    request = REQUESTS[name]
    reply = await replay(http, aggregated, request)
    wanted = (request.body.get("stream_options") or {}).get("include_usage", False)

    assert all(text_of(request, reply))
    assert len(text_of(request, reply)) == request.body.get("n", 1) * prompts(request)
    if request.body.get("stream"):
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert bool(events(reply.content)[-1].get("usage")) is wanted
        assert [not record["choices"] for record in events(reply.content)].count(True) == wanted
    else:
        assert reply.headers["content-type"] == "application/json"
        assert reply.json()["usage"]["total_tokens"] > 0


def prompts(request: RecordedRequest) -> int:
    """How many prompts a request has."""
    prompt = request.body.get("prompt")
    return len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], list | str) else 1


@pytest.mark.parametrize("name", [name for name in GENERATED if not REQUESTS[name].body.get("stream")])
async def test_whole_answer_fits_the_public_schema(name: str, aggregated: str, http: httpx2.AsyncClient) -> None:
    """A stock worker's reply, as it reaches the client, has all that the API document requires."""
    request = REQUESTS[name]
    reply = (await replay(http, aggregated, request)).json()
    schema = "CreateChatCompletionResponse" if request.path == CHAT else "CreateCompletionResponse"
    problems = {re.sub(r"\d+", "N", error.json_path) for error in validator(schema).iter_errors(reply)}

    assert problems <= STOCK_HABITS


@pytest.mark.parametrize("name", [name for name in GENERATED if REQUESTS[name].body.get("echo")])
async def test_echoed_prompt_has_its_logprobs(name: str, aggregated: str, http: httpx2.AsyncClient) -> None:
    """Evaluation tools read four lists of equal length, in which the first token has no log probability."""
    logprobs = (await replay(http, aggregated, REQUESTS[name])).json()["choices"][0]["logprobs"]

    assert len({len(values) for values in logprobs.values()}) == 1
    assert [value is None for value in logprobs["token_logprobs"]].index(False) == 1


@pytest.mark.parametrize("name", GENERATED)
async def test_two_stock_legs_answer_what_one_stock_worker_does(
    name: str, disaggregated: str, stock: StockWorker, gateway_url: GatewayUrl, http: httpx2.AsyncClient
) -> None:
    """Every recorded request has the same answer through both legs as from one worker alone."""
    two = await replay(http, disaggregated, REQUESTS[name])
    async with StockWorker(ledger=Ledger()) as alone:
        one = await replay(http, await gateway_url(worker=(alone.url,)), REQUESTS[name])

    assert text_of(REQUESTS[name], two) == text_of(REQUESTS[name], one)


@pytest.mark.parametrize("name", REFUSED)
async def test_request_for_what_is_not_served_is_a_404(name: str, aggregated: str, http: httpx2.AsyncClient) -> None:
    """An endpoint that is not here is answered with the error object, which every client shows to its user."""
    reply = await replay(http, aggregated, REQUESTS[name])

    assert reply.status_code == 404
    assert validator("ErrorResponse").is_valid(reply.json())


@pytest.mark.parametrize("path", GENERATING)
async def test_body_that_is_no_request_is_a_400(path: str, aggregated: str, http: httpx2.AsyncClient) -> None:
    """Every body that is hard to parse gets the error object, and the next request works."""
    headers = {"content-type": "application/json"}
    for name, body in hard_bodies().items():
        reply = await http.post(aggregated + path, content=body, headers=headers)

        assert (reply.status_code, name) == (400, name)
        assert validator("ErrorResponse").is_valid(reply.json())
    assert (await http.get(aggregated + "/health")).status_code == 200
