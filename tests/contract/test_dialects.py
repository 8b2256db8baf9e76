"""Stock workers of every version on the wire are given exactly what they know."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest

from tests.contract.conftest import GatewayUrl
from tests.stock import Ledger, StockWorker
from tests.stock.versions import JULY, JUNE, NEWEST, Version

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "test-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6},
    COMPLETIONS: {"model": "test-model", "prompt": "hello", "max_tokens": 6},
}
ENDPOINT = {"ctx_info_endpoint": ["tcp://127.0.0.1:5555"]}
VERSIONS = [NEWEST, JULY, JUNE]


class Legs:
    """A context and a generation worker, and a client of the gateway in front of them."""

    def __init__(self, http: httpx2.AsyncClient, url: str, context: StockWorker, generation: StockWorker) -> None:
        self.http = http
        self.url = url
        self.context = context
        self.generation = generation

    async def ask(self, path: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx2.Response:
        """A request that takes both legs."""
        return await self.http.post(self.url + path, json=BODIES[path] | fields, headers=headers)

    def sent(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What each leg got last."""
        return self.context.requests[-1].decoded(), self.generation.requests[-1].decoded()


class Starter:
    """Starts legs of any two versions."""

    def __init__(self, stack: AsyncExitStack, http: httpx2.AsyncClient, gateway_url: GatewayUrl) -> None:
        self._stack = stack
        self._http = http
        self._gateway_url = gateway_url

    async def __call__(self, context: Version, generation: Version, **settings: Any) -> Legs:
        ledger = Ledger()
        workers = [
            await self._stack.enter_async_context(StockWorker(ledger=ledger, server_keys=ENDPOINT, version=version))
            for version in (context, generation)
        ]
        urls = {"context_worker": (workers[0].url,), "generation_worker": (workers[1].url,)}
        return Legs(self._http, await self._gateway_url(**urls, **settings), *workers)


@pytest.fixture
async def legs(gateway_url: GatewayUrl, http: httpx2.AsyncClient) -> AsyncIterator[Starter]:
    """Starts them."""
    async with AsyncExitStack() as stack:
        yield Starter(stack, http, gateway_url)


@pytest.mark.parametrize("generation", VERSIONS, ids=lambda version: version.number)
@pytest.mark.parametrize("context", VERSIONS, ids=lambda version: version.number)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_every_version_works_with_every_other(
    path: str, context: Version, generation: Version, legs: Starter
) -> None:
    """Mixed fleets serve, also with a conversation's id: each worker is sent no key that it would refuse."""
    running = await legs(context, generation)
    reply = await running.ask(path, {"x-session-id": "talk"})

    # A stock worker of another version is refused its echo only for keys that it does not know: those were left out.
    assert (reply.status_code, reply.json().get("error")) == (200, None)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.number)
@pytest.mark.parametrize("style", ["context_first", "generation_first"])
async def test_both_styles_work_in_every_version(style: str, version: Version, legs: Starter) -> None:
    """Generation first is no exception."""
    running = await legs(version, version, schedule_style=style)

    assert (await running.ask(CHAT, {"x-session-id": "talk"}, stream=True)).content.endswith(b"data: [DONE]\n\n")


async def test_newest_version_finds_the_conversation_in_its_own_field(legs: Starter) -> None:
    """The id of a header becomes `conversation_params`, and stands nowhere else."""
    running = await legs(NEWEST, NEWEST)
    await running.ask(CHAT, {"x-session-id": "talk"})

    for sent in running.sent():
        assert sent["conversation_params"] == {"conversation_id": "talk"}
        assert "conversation_id" not in sent["disaggregated_params"]


async def test_july_version_finds_the_conversation_in_the_handoff(legs: Starter) -> None:
    """Before #17618 it is a key of the hand-off, and comes back with it."""
    running = await legs(JULY, JULY)
    await running.ask(CHAT, {"x-session-id": "talk"})

    assert [sent["disaggregated_params"]["conversation_id"] for sent in running.sent()] == ["talk", "talk"]


async def test_june_version_is_not_asked_for_base64(legs: Starter) -> None:
    """Before #15698 prompt ids are numbers, and a request has no conversation of its own."""
    running = await legs(JUNE, JUNE)
    await running.ask(CHAT, {"x-session-id": "talk"})
    context, generation = running.sent()

    assert "return_prompt_token_ids_b64" not in context["disaggregated_params"]
    assert isinstance(generation["prompt_token_ids"], list)
    assert "conversation_params" not in context | generation
    assert context["disaggregated_params"]["conversation_id"] == "talk"


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.number)
async def test_resolved_thinking_is_known_to_the_newest_only(version: Version, legs: Starter) -> None:
    """The reasoning mode crosses between those who know it."""
    running = await legs(NEWEST, version)
    await running.ask(CHAT)
    _, generation = running.sent()

    assert ("resolved_thinking" in generation["disaggregated_params"]) is (version is NEWEST)


async def test_the_dialect_can_be_said(legs: Starter) -> None:
    """Whatever a worker says its version is, the operator's word counts."""
    running = await legs(JULY, JULY, dialect="stock-2026-06")
    await running.ask(CHAT)
    context, _ = running.sent()

    assert "return_prompt_token_ids_b64" not in context["disaggregated_params"]
