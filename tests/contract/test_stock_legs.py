"""The stand-in of a stock worker does both legs of disaggregated serving as the wire has them."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.stock import Behaviour, Ledger, StockWorker
from tests.stock.disagg import AUTH_HEADER, signature

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ID = 2**62 + 1
KEY = "a key"
ENDPOINT = {"ctx_info_endpoint": ["tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556"]}
CONTEXT = {"request_type": "context_only", "disagg_request_id": ID, "schedule_style": 0}
HELLO: dict[str, Any] = {"model": "test-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
PROMPT: dict[str, Any] = {"model": "test-model", "prompt": "hello", "max_tokens": 4}


@pytest.fixture
async def context() -> AsyncIterator[StockWorker]:
    async with StockWorker(ledger=Ledger(), server_keys=ENDPOINT) as worker:
        yield worker


@pytest.fixture
async def generation(context: StockWorker) -> AsyncIterator[StockWorker]:
    async with StockWorker(ledger=context.ledger, key=KEY, server_keys=ENDPOINT) as worker:
        yield worker


def echo(reply: dict[str, Any]) -> dict[str, Any]:
    """The hand-off as an orchestrator sends it on."""
    params: dict[str, Any] = reply["choices"][0]["disaggregated_params"]
    return params | {"request_type": "generation_only", "schedule_style": 0, "ctx_usage": reply["usage"]}


def signed(params: dict[str, Any]) -> dict[str, str]:
    """The headers of a generation leg that carries these params."""
    return {AUTH_HEADER: signature(KEY, params["encoded_opaque_state"], params["ctx_info_endpoint"])}


async def test_context_leg_names_every_key(context: StockWorker, http: httpx2.AsyncClient) -> None:
    """A context leg answers one token, `length`, its ids and every other key of the hand-off as null."""
    reply = (await http.post(context.url + COMPLETIONS, json=PROMPT | {"disaggregated_params": CONTEXT})).json()
    params = reply["choices"][0]["disaggregated_params"]

    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 1
    assert params["disagg_request_id"] == ID
    assert params["schedule_style"] == 0
    assert [name for name, value in params.items() if value is None] == [
        "first_gen_log_probs",
        "first_gen_logits",
        "draft_tokens",
        "ctx_info_endpoint",
        "ctx_usage",
        "resolved_thinking",
    ]


async def test_prompt_ids_are_base64_for_chat_when_asked(context: StockWorker, http: httpx2.AsyncClient) -> None:
    """Asked for base64, a chat reply has little-endian int32 instead of a list; completions never do."""
    params = {"disaggregated_params": CONTEXT | {"return_prompt_token_ids_b64": True}}
    chat = (await http.post(context.url + CHAT, json=HELLO | params)).json()
    completion = (await http.post(context.url + COMPLETIONS, json=PROMPT | params)).json()

    assert chat["prompt_token_ids"] is None
    assert b64decode(chat["prompt_token_ids_b64"])[:8] == b"<\0\0\0u\0\0\0"
    assert completion["prompt_token_ids"] == list(b"hello")


async def test_early_finish_has_no_ids(context: StockWorker, http: httpx2.AsyncClient) -> None:
    """An answer that ends in the context leg says `stop`, and has no ids to go on from."""
    context.behaviour.early_finish = True
    reply = (await http.post(context.url + COMPLETIONS, json=PROMPT | {"disaggregated_params": CONTEXT})).json()

    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["choices"][0]["disaggregated_params"]["disagg_request_id"] is None


async def test_two_legs_answer_what_one_worker_does(
    context: StockWorker, generation: StockWorker, http: httpx2.AsyncClient
) -> None:
    """The generation leg replays the first token, so the whole answer is its own; its usage is the context leg's."""
    context.behaviour.cached_tokens = 3
    alone = (await http.post(generation.url + COMPLETIONS, json=PROMPT)).json()
    first = (await http.post(context.url + COMPLETIONS, json=PROMPT | {"disaggregated_params": CONTEXT})).json()
    body = PROMPT | {"prompt": first["prompt_token_ids"], "disaggregated_params": echo(first)}
    second = (await http.post(generation.url + COMPLETIONS, json=body, headers=signed(echo(first)))).json()

    assert second["choices"][0]["text"] == alone["choices"][0]["text"]
    assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert second["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    "change",
    [{"first_gen_tokens": [1]}, {"encoded_opaque_state": "AAAA"}, {"ctx_request_id": 2**62}, {"draft_tokens": []}],
)
async def test_changed_echo_is_refused(
    context: StockWorker, generation: StockWorker, http: httpx2.AsyncClient, change: dict[str, Any]
) -> None:
    """Whatever of the hand-off does not come back exactly is an error, reported as the client's."""
    first = (await http.post(context.url + CHAT, json=HELLO | {"disaggregated_params": CONTEXT})).json()
    params = echo(first) | change
    body = HELLO | {"prompt_token_ids": first["prompt_token_ids"], "disaggregated_params": params}
    reply = await http.post(generation.url + CHAT, json=body, headers=signed(params))

    assert reply.status_code == 400
    assert reply.json()["type"] == "BadRequestError"


@pytest.mark.parametrize("headers", [{}, {AUTH_HEADER: "sha256=00"}])
async def test_unsigned_handoff_is_refused(
    context: StockWorker, generation: StockWorker, http: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    """A worker with a key takes no hand-off without its signature."""
    first = (await http.post(context.url + COMPLETIONS, json=PROMPT | {"disaggregated_params": CONTEXT})).json()
    body = PROMPT | {"prompt": first["prompt_token_ids"], "disaggregated_params": echo(first)}
    reply = await http.post(generation.url + COMPLETIONS, json=body, headers=headers)

    assert reply.json()["message"] == "Invalid internal disaggregated request authentication"


async def test_signature_is_that_of_the_documented_message() -> None:
    """The signed message is compact JSON with sorted keys; of a list of endpoints only the first counts."""
    assert signature("k", None, ["a", "b"]) == signature("k", None, "a")
    assert signature("k", "s", None) == "sha256=e53a64e2c56e9b50fdb09379b0d699141209d46dba214f016a06a61be601c5a9"


async def test_generation_first_legs_wait_for_each_other(
    context: StockWorker, generation: StockWorker, http: httpx2.AsyncClient
) -> None:
    """A generation-first context leg is answered only when the generation leg is there, and the other way round."""
    endpoint = ENDPOINT["ctx_info_endpoint"][0]
    shared = {"disagg_request_id": ID, "ctx_request_id": ID, "schedule_style": 1}
    params = {"request_type": "generation_only", "ctx_info_endpoint": endpoint, **shared}
    late = http.post(
        generation.url + COMPLETIONS,
        json=PROMPT | {"disaggregated_params": params},
        headers={AUTH_HEADER: signature(KEY, None, endpoint)},
    )
    early = asyncio.create_task(
        http.post(context.url + COMPLETIONS, json=PROMPT | {"disaggregated_params": CONTEXT | shared})
    )
    answer, first = await asyncio.gather(late, early)

    assert answer.json()["usage"]["prompt_tokens"] == first.json()["usage"]["prompt_tokens"] == 5
    assert answer.json()["choices"][0]["disaggregated_params"] is None


async def test_replaced_id_is_the_one_to_go_on_with(http: httpx2.AsyncClient) -> None:
    """A context leg may answer with another id than it was given."""
    async with StockWorker(behaviour=Behaviour(replaced_disagg_id=ID + 1)) as worker:
        first = (await http.post(worker.url + COMPLETIONS, json=PROMPT | {"disaggregated_params": CONTEXT})).json()
        body = PROMPT | {"prompt": first["prompt_token_ids"], "disaggregated_params": echo(first)}
        second = await http.post(worker.url + COMPLETIONS, json=body)

    assert echo(first)["disagg_request_id"] == ID + 1
    assert second.status_code == 200
