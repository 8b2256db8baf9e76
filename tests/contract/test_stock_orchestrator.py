"""Our workers behind a stock orchestrator: it gets what it needs of either leg, and its clients the answer of one worker."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.orchestrator_stand_in import CHAT, COMPLETIONS, HIGHEST_ID, Answer, StockOrchestrator, WorkerError
from tests.stock.protocol import DisaggregatedParams
from tests.worker_rig import serving
from worker.engines import create_engine

KEY = "a shared key"


def chat(content: str = "Tell me something.", **fields: Any) -> dict[str, Any]:
    """A chat request as a client sends it. Any: fields of every type."""
    messages = [{"role": "user", "content": content}]
    return {"model": "scripted", "messages": messages, "max_tokens": 12, "temperature": 0} | fields


def completion(prompt: Any = "Tell me something.", **fields: Any) -> dict[str, Any]:
    """The same for completions."""
    return {"model": "scripted", "prompt": prompt, "max_tokens": 12, "temperature": 0} | fields


REQUESTS = {
    "chat": (CHAT, chat()),
    "chat-multi-byte": (CHAT, chat("[[text:größer 中文 🙂 und mehr]]")),
    "chat-stop": (CHAT, chat("[[text:one two three four]]", stop=[" two"])),
    "chat-one-token": (CHAT, chat(max_tokens=1)),
    "chat-logprobs": (CHAT, chat(logprobs=True, top_logprobs=2)),
    "chat-seed": (CHAT, chat(temperature=1.0, seed=5)),
    "completion": (COMPLETIONS, completion()),
    "completion-ids": (COMPLETIONS, completion([[72, 101, 108, 108, 111]])),
    "completion-logprobs": (COMPLETIONS, completion(logprobs=2)),
    "completion-one-token": (COMPLETIONS, completion(max_tokens=1)),
}


# One pair of workers serves all tests of this module, so they share its event loop.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def driven(key: str | None = None) -> AsyncIterator[StockOrchestrator]:
    """A pair of our workers behind a stock orchestrator, all of one key."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient())
        context, generation = [
            await stack.enter_async_context(serving(create_engine("scripted", None, {}), role=role, internal_key=key))
            for role in ("context", "generation")
        ]
        yield StockOrchestrator(http, context.url, generation.url, key=key)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def orchestrator() -> AsyncIterator[StockOrchestrator]:
    """Without a key."""
    async with driven() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keyed() -> AsyncIterator[StockOrchestrator]:
    """With a shared key on all three."""
    async with driven(KEY) as made:
        yield made


async def alone(orchestrator: StockOrchestrator, path: str, request: dict[str, Any]) -> dict[str, Any]:
    """What one of the workers answers by itself."""
    reply: dict[str, Any] = (await orchestrator.http.post(orchestrator.generation_url + path, json=request)).json()
    return reply


def said(answer: Answer) -> tuple[str, str | None]:
    """The text of an answer and why it ended, streamed or not."""
    if answer.body is not None:
        return words(answer.body)
    choices = [choice for record in answer.records() for choice in record["choices"]]
    return "".join(_part(choice) for choice in choices), choices[-1]["finish_reason"]


def words(body: dict[str, Any]) -> tuple[str, str | None]:
    """The same of a whole reply."""
    (choice,) = body["choices"]
    return _part(choice), choice["finish_reason"]


def _part(choice: dict[str, Any]) -> str:
    part = choice.get("delta") or choice.get("message") or choice
    return part.get("content") or part.get("text") or ""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
async def test_two_legs_answer_what_one_worker_does(name: str, stream: bool, orchestrator: StockOrchestrator) -> None:
    """The answer through both legs, driven by a stock orchestrator, is that of one worker, the first token included."""
    path, request = REQUESTS[name]
    answer = await orchestrator.serve(path, request | {"stream": stream})

    assert said(answer) == words(await alone(orchestrator, path, request))
    assert len(answer.sent) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["chat", "completion", "chat-stop"])
async def test_generation_first_answers_what_one_worker_does(
    name: str, stream: bool, orchestrator: StockOrchestrator
) -> None:
    """The same when both legs run at once and the workers find each other."""
    path, request = REQUESTS[name]
    answer = await orchestrator.serve_generation_first(path, request | {"stream": stream})

    assert said(answer) == words(await alone(orchestrator, path, request))


@pytest.mark.parametrize("request_of", [chat, completion])
async def test_context_reply_spells_out_every_key(
    request_of: Callable[[], dict[str, Any]], orchestrator: StockOrchestrator
) -> None:
    """The hand-off has every key a stock worker writes, nulls included, an integer style, and exact 63-bit ids."""
    path = CHAT if request_of is chat else COMPLETIONS
    answer = await orchestrator.serve(path, request_of())
    params = answer.context["choices"][0]["disaggregated_params"]

    assert set(params) == set(DisaggregatedParams.model_fields)
    assert params["schedule_style"] == 0
    assert isinstance(params["schedule_style"], int)
    assert params["disagg_request_id"] == answer.sent[0]["disaggregated_params"]["disagg_request_id"]
    assert 2**53 < params["disagg_request_id"] <= HIGHEST_ID
    assert answer.context["choices"][0]["finish_reason"] == "length"
    assert answer.context["usage"]["completion_tokens"] == 1
    assert len(params["first_gen_tokens"]) == 1


@pytest.mark.parametrize(("request_of", "name"), [(chat, "prompt_token_ids_b64"), (completion, "prompt_token_ids")])
async def test_prompt_ids_are_base64_for_chat_when_asked(
    request_of: Callable[[], dict[str, Any]], name: str, orchestrator: StockOrchestrator
) -> None:
    """Only chat has the base64 form; either way the generation leg goes on from it."""
    path = CHAT if request_of is chat else COMPLETIONS
    asking = replace(orchestrator, ask_b64=True)
    answer = await asking.serve(path, request_of())

    present = {key for key in ("prompt_token_ids", "prompt_token_ids_b64") if answer.context.get(key) is not None}
    assert present == {name}
    assert said(answer) == words(await alone(orchestrator, path, request_of()))


async def test_usage_is_the_context_legs_and_the_generation_legs(orchestrator: StockOrchestrator) -> None:
    """Prompt and cached tokens are counted where the prompt was read, completion tokens where they were generated."""
    answer = await orchestrator.serve(COMPLETIONS, completion("[[context:cached=3]] a prompt with a known length"))
    assert answer.body is not None

    usage = answer.body["usage"]
    assert usage["prompt_tokens"] == answer.context["usage"]["prompt_tokens"] > 3
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_streamed_usage_is_told_when_asked(orchestrator: StockOrchestrator) -> None:
    """The usage chunk of a generation leg counts the context leg's prompt."""
    request = chat(stream=True, stream_options={"include_usage": True})
    answer = await orchestrator.serve(CHAT, request)
    last = answer.records()[-1]

    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == answer.context["usage"]["prompt_tokens"]


@pytest.mark.parametrize(("path", "request_of"), [(CHAT, chat), (COMPLETIONS, completion)])
async def test_answer_that_ends_in_the_context_leg_is_not_sent_on(
    path: str, request_of: Callable[..., dict[str, Any]], orchestrator: StockOrchestrator
) -> None:
    """A context leg that finds the end of the answer says so by its finish reason, and the orchestrator stops there."""
    answer = await orchestrator.serve(path, request_of("[[text:]]"))

    assert len(answer.sent) == 1
    assert said(answer) == ("", "stop")


async def test_signed_handoff_is_taken(keyed: StockOrchestrator) -> None:
    """With a shared key on all three, the signature of the orchestrator opens the generation leg, in both orders."""
    first = await keyed.serve(CHAT, chat())
    second = await keyed.serve_generation_first(CHAT, chat())

    assert said(first) == said(second) == words(await alone(keyed, CHAT, chat()))


@pytest.mark.parametrize("key", [None, "another key"])
async def test_unsigned_handoff_is_refused(key: str | None, keyed: StockOrchestrator) -> None:
    """Without the signature, or with another key's, a worker with a key takes no hand-off."""
    with pytest.raises(WorkerError) as caught:
        await replace(keyed, key=key).serve(CHAT, chat())

    assert caught.value.status == 400


@pytest.mark.parametrize(("path", "request_"), [(CHAT, chat(n=2)), (COMPLETIONS, completion(["a", "b"]))])
async def test_several_sequences_are_refused(
    path: str, request_: dict[str, Any], orchestrator: StockOrchestrator
) -> None:
    """What cannot be handed over is a 400 on the first leg, not a wrong answer on the second."""
    with pytest.raises(WorkerError) as caught:
        await orchestrator.serve(path, request_)

    assert caught.value.status == 400


async def test_state_is_handed_over_once(orchestrator: StockOrchestrator) -> None:
    """The same generation request a second time finds its state gone, and says so."""
    answer = await orchestrator.serve(CHAT, chat())
    with pytest.raises(WorkerError) as caught:
        await orchestrator._answered(CHAT, answer.sent[1], Answer())

    assert caught.value.status == 503
    assert b"handoff_failed" in caught.value.body
