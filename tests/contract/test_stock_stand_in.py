"""The stand-in of a stock worker says on the wire what a stock worker says."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgpack  # type: ignore[import-untyped]  # the package carries no types
import pytest

from tests.stock import Behaviour, Ending, Refusal, StockWorker

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TAG = {"content-type": "application/json", "x-trtllm-msgpack": "1"}
HELLO: dict[str, Any] = {"model": "test-model", "messages": [{"role": "user", "content": "hello"}]}
PROMPT: dict[str, Any] = {"model": "test-model", "prompt": "hello"}


@pytest.fixture
async def stock() -> AsyncIterator[StockWorker]:
    async with StockWorker() as worker:
        yield worker


@pytest.fixture
async def client(stock: StockWorker) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=stock.url) as http:
        yield http


async def test_tagged_body_is_read_as_msgpack(stock: StockWorker, client: httpx2.AsyncClient) -> None:
    """A body with the tag is msgpack, and answers the same as its JSON does."""
    tagged = await client.post(CHAT, content=msgpack.packb(HELLO), headers=TAG)
    plain = await client.post(CHAT, json=HELLO)

    assert tagged.json()["choices"] == plain.json()["choices"]
    assert [request.tagged for request in stock.requests] == [True, False]
    assert stock.requests[0].decoded() == HELLO


@pytest.mark.parametrize("value", ["true", "0", "01"])
async def test_tag_counts_only_with_its_exact_value(client: httpx2.AsyncClient, value: str) -> None:
    """Any other value than 1 leaves the body JSON, which msgpack is not."""
    reply = await client.post(CHAT, content=msgpack.packb(HELLO), headers={"x-trtllm-msgpack": value})

    assert reply.status_code == 400


@pytest.mark.parametrize("more", [{"nonsense": 1}, {"suffix": "x"}, {"stream_options": {"include_obfuscation": False}}])
async def test_unknown_key_is_refused(client: httpx2.AsyncClient, more: dict[str, Any]) -> None:
    """A key the worker does not know is a 400 whose error is a sentence."""
    reply = await client.post(COMPLETIONS, json=PROMPT | {"stream": True} | more)

    assert reply.status_code == 400
    assert list(reply.json()) == ["error"]
    assert isinstance(reply.json()["error"], str)


async def test_string_schedule_style_is_refused(client: httpx2.AsyncClient) -> None:
    """`schedule_style` is an integer on the wire."""
    params = {"request_type": "context_only", "disagg_request_id": 2**41, "schedule_style": "context_first"}
    reply = await client.post(COMPLETIONS, json=PROMPT | {"disaggregated_params": params})

    assert reply.status_code == 400


async def test_whole_reply_keeps_its_nulls(client: httpx2.AsyncClient) -> None:
    """What a whole reply has nothing to say about is null, not absent."""
    reply = (await client.post(CHAT, json=HELLO)).json()

    assert reply["prompt_token_ids"] is None
    assert reply["choices"][0]["disaggregated_params"] is None
    assert reply["choices"][0]["logprobs"] is None


async def test_chat_stream_has_the_known_quirks(client: httpx2.AsyncClient) -> None:
    """A space before the first blank line, no null keys, a usage chunk without choices, then [DONE] and nothing."""
    body = HELLO | {"stream": True, "stream_options": {}}
    records = (await client.post(CHAT, json=body)).content.split(b"\n\n")

    assert records[0].endswith(b"} ")
    assert not any(b"null" in record for record in records[:-3])
    assert json.loads(records[-3][6:])["choices"] == []
    assert json.loads(records[-3][6:])["usage"]["prompt_tokens_details"] is None
    assert records[-2:] == [b"data: [DONE]", b""]


async def test_metrics_come_after_the_terminal_when_asked(client: httpx2.AsyncClient) -> None:
    """With the header, one event follows [DONE]."""
    reply = await client.post(CHAT, json=HELLO | {"stream": True}, headers={"x-trtllm-return-metrics": "1"})

    assert b"data: [DONE]\n\nevent: trtllm.perf_metrics\ndata: {" in reply.content


async def test_failed_completions_stream_says_done_twice(stock: StockWorker, client: httpx2.AsyncClient) -> None:
    """A completions stream reports its failure, and then [DONE], twice."""
    stock.behaviour.ending, stock.behaviour.tokens_before_ending = Ending.FAILURE, 1
    reply = await client.post(COMPLETIONS, json=PROMPT | {"stream": True})

    assert b'"type": "server_error"' in reply.content
    assert reply.content.endswith(b"data: [DONE]\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize("ending", [Ending.FAILURE, Ending.VANISH])
async def test_broken_chat_stream_breaks_the_connection(
    stock: StockWorker, client: httpx2.AsyncClient, ending: Ending
) -> None:
    """A chat stream that fails says nothing: the connection ends within the body."""
    stock.behaviour.ending, stock.behaviour.tokens_before_ending = ending, 1

    with pytest.raises(httpx2.TransportError):
        await client.post(CHAT, json=HELLO | {"stream": True})


async def test_cut_stream_ends_without_a_terminal(stock: StockWorker, client: httpx2.AsyncClient) -> None:
    """A cut stream is a proper HTTP body that lacks its [DONE]."""
    stock.behaviour.ending = Ending.CUT
    reply = await client.post(COMPLETIONS, json=PROMPT | {"stream": True})

    assert reply.content == b""


@pytest.mark.parametrize(
    ("refusal", "status", "body"),
    [
        (Refusal.validation("no"), 400, {"error": "no"}),
        (
            Refusal.internal("no"),
            400,
            {"object": "error", "message": "no", "type": "BadRequestError", "param": None, "code": 400},
        ),
        (Refusal.fatal(), 200, None),
    ],
)
async def test_refusal_has_a_stock_shape(
    stock: StockWorker, client: httpx2.AsyncClient, refusal: Refusal, status: int, body: object
) -> None:
    """Errors come in the stock worker's own shapes; after the last refusal it serves again."""
    stock.behaviour.refusal, stock.behaviour.refusals_left = refusal, 1
    reply = await client.post(CHAT, json=HELLO)

    assert (reply.status_code, reply.json()) == (status, body)
    assert (await client.post(CHAT, json=HELLO)).status_code == 200


async def test_vanished_worker_says_nothing(stock: StockWorker, client: httpx2.AsyncClient) -> None:
    """A worker that vanishes before its reply resets the connection."""
    stock.behaviour.vanish_before_reply = True

    with pytest.raises(httpx2.TransportError):
        await client.post(CHAT, json=HELLO)


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_is_noticed(stock: StockWorker, client: httpx2.AsyncClient, stream: bool) -> None:
    """A connection that is closed early is recorded, streamed or not."""
    stock.behaviour.token_delay = 3600
    with pytest.raises(httpx2.ReadTimeout):
        await client.post(CHAT, json=HELLO | {"stream": stream}, timeout=0.2)

    await asyncio.wait_for(stock.requests[0].gone.wait(), 2)


async def test_server_info_does_not_name_packrelay(client: httpx2.AsyncClient) -> None:
    """A stock worker does not identify itself, and has no retrieval of a single model."""
    assert "packrelay" not in (await client.get("/server_info")).json()
    assert (await client.get("/v1/models")).json()["data"][0]["owned_by"] == "tensorrt_llm"
    assert (await client.get("/v1/models/test-model")).json() == {"detail": "Not Found"}


async def test_unhealthy_worker_says_so_in_text() -> None:
    """An unhealthy worker answers 503 with text."""
    async with StockWorker(behaviour=Behaviour(healthy=False)) as stock, httpx2.AsyncClient() as http:
        reply = await http.get(f"{stock.url}/health")

    assert (reply.status_code, reply.text) == (503, "LLM is unavailable")


async def test_answer_depends_on_the_prompt_alone(client: httpx2.AsyncClient) -> None:
    """The same prompt gets the same answer, streamed or not; another prompt gets another one."""
    whole = (await client.post(COMPLETIONS, json=PROMPT)).json()["choices"][0]["text"]
    stream = (await client.post(COMPLETIONS, json=PROMPT | {"stream": True})).text.split("\n\n")[:-2]
    other = (await client.post(COMPLETIONS, json=PROMPT | {"prompt": "goodbye"})).json()["choices"][0]["text"]

    assert "".join(json.loads(record[6:])["choices"][0]["text"] for record in stream) == whole != other


async def test_stop_string_is_cut_off(client: httpx2.AsyncClient) -> None:
    """The answer ends before the first stop string, which is named."""
    text = (await client.post(COMPLETIONS, json=PROMPT)).json()["choices"][0]["text"]
    choice = (await client.post(COMPLETIONS, json=PROMPT | {"stop": [text[5:8]]})).json()["choices"][0]

    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text[:5], "stop", text[5:8])
