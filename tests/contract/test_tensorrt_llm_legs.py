"""Both legs through TensorRT-LLM, on a stand-in of each version: between our workers, and with a stock peer on either side.

The orchestrator is a stock one. The stock peer is the library itself called as `trtllm-serve` calls it, with the wire's fields
taken over one by one.
"""

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.contract.serving import serving_gateway
from tests.contract.test_stock_orchestrator import alone, chat, completion, said, words
from tests.fake_tensorrt_llm import MODEL, VERSIONS
from tests.orchestrator_stand_in import CHAT, COMPLETIONS, Answer, StockOrchestrator, WorkerError
from tests.stock.protocol import DisaggregatedParams
from tests.trtllm_rig import behind, started, trtllm
from tests.worker_rig import serving

# Both workers of a version serve all of its tests, so these share an event loop.
pytestmark = pytest.mark.asyncio(loop_scope="module")

NEWER = "2026-07"
KEY = "a shared key"
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, chat(model=MODEL)),
    "chat-multi-byte": (CHAT, chat("[[text:größer 中文 🙂 und mehr]]", model=MODEL)),
    "chat-stop": (CHAT, chat("[[text:one two three four]]", model=MODEL, stop=[" two"])),
    "chat-one-token": (CHAT, chat(model=MODEL, max_tokens=1)),
    "chat-seed": (CHAT, chat(model=MODEL, temperature=1.0, seed=5)),
    "chat-form": (CHAT, chat(model=MODEL, response_format={"type": "json_object"}, max_tokens=40)),
    "completion": (COMPLETIONS, completion(model=MODEL)),
    "completion-ids": (COMPLETIONS, completion([[72, 101, 108, 108, 111]], model=MODEL)),
    "completion-echo": (COMPLETIONS, completion("Hällo", model=MODEL, echo=True)),
}
LOGPROBS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat-logprobs": (CHAT, chat(model=MODEL, logprobs=True, top_logprobs=2)),
    "completion-logprobs": (COMPLETIONS, completion(model=MODEL, logprobs=2)),
}


@asynccontextmanager
async def driven(version: str, key: str | None = None, **generation: Any) -> AsyncIterator[StockOrchestrator]:
    """A pair of our workers behind a stock orchestrator. Any: further settings of the generation worker."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient())
        first = await stack.enter_async_context(serving(trtllm(version), role="context", internal_key=key))
        settings = {"role": "generation", "internal_key": key, **generation}
        second = await stack.enter_async_context(serving(trtllm(version), **settings))
        yield StockOrchestrator(http, first.url, second.url, key=key)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=VERSIONS)
async def orchestrator(request: pytest.FixtureRequest) -> AsyncIterator[StockOrchestrator]:
    """A pair of each version."""
    async with driven(request.param) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def newer() -> AsyncIterator[StockOrchestrator]:
    """A pair of the newer version."""
    async with driven(NEWER) as made:
        yield made


async def equals_one_worker(orchestrator: StockOrchestrator, path: str, request: dict[str, Any]) -> Answer:
    """The answer through two legs, which must be that of one worker."""
    answer = await orchestrator.serve(path, request)
    whole = request | {"stream": False}

    assert said(answer) == words(await alone(orchestrator, path, whole))
    assert len(answer.sent) == 2
    return answer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
async def test_two_legs_answer_what_one_worker_does(name: str, stream: bool, orchestrator: StockOrchestrator) -> None:
    """The answer through both legs is that of one worker, the first token included."""
    path, request = REQUESTS[name]
    await equals_one_worker(orchestrator, path, request | {"stream": stream})


@pytest.mark.parametrize("name", LOGPROBS)
async def test_log_probabilities_are_handed_over(name: str, newer: StockOrchestrator) -> None:
    """The first token's log probabilities come with the hand-off, where the version has a place for them."""
    path, request = LOGPROBS[name]
    answer = await equals_one_worker(newer, path, request)
    whole = await alone(newer, path, request)
    assert answer.body is not None
    expected = whole["choices"][0]["logprobs"]
    # A stock peer's replies have no refusals.
    expected.pop("refusal", None)

    assert answer.body["choices"][0]["logprobs"] == expected


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["chat", "completion", "chat-stop"])
async def test_generation_first_answers_what_one_worker_does(name: str, stream: bool, newer: StockOrchestrator) -> None:
    """The same when both legs run at once: the engines meet at the id, and usage is what the context engine told."""
    path, request = REQUESTS[name]
    answer = await newer.serve_generation_first(path, request | {"stream": stream})

    assert said(answer) == words(await alone(newer, path, request))


async def test_generation_first_usage_comes_through_the_engines(newer: StockOrchestrator) -> None:
    """Cached tokens are those of the context engine, as its peer passed them on."""
    answer = await newer.serve_generation_first(COMPLETIONS, completion("[[cached=3]] a known prompt", model=MODEL))
    assert answer.body is not None

    assert answer.body["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


async def test_older_version_has_one_order() -> None:
    """A version that knows context-first only refuses the other order by name, on both legs."""
    async with serving(trtllm("1.2.1")) as worker, httpx2.AsyncClient() as http:
        for kind in ("context_only", "generation_only"):
            params = {"request_type": kind, "disagg_request_id": 2**62, "schedule_style": 1}
            reply = await http.post(worker.url + CHAT, json=chat(model=MODEL, disaggregated_params=params))

            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "disaggregated_params.schedule_style")


@pytest.mark.parametrize("version", VERSIONS)
async def test_context_reply_is_the_engines_own(version: str) -> None:
    """The reply has every key of the wire; the opaque state is the engine's bytes in base64, the token and the ids are real."""
    async with driven(version) as orchestrator:
        answer = await orchestrator.serve(CHAT, chat(model=MODEL))
        params = answer.context["choices"][0]["disaggregated_params"]

    assert set(params) == set(DisaggregatedParams.model_fields)
    assert b64decode(params["encoded_opaque_state"], validate=True).startswith(b"\xfb\xff")
    assert len(params["first_gen_tokens"]) == 1
    assert answer.context["choices"][0]["finish_reason"] == "length"
    assert params["disagg_request_id"] == params["ctx_request_id"]
    assert (params["ctx_info_endpoint"] is not None) is (version == NEWER)
    if version == NEWER:
        assert params["ctx_request_id"] == answer.sent[0]["disaggregated_params"]["disagg_request_id"] > 2**53


async def test_usage_is_the_context_legs_and_the_generation_legs(orchestrator: StockOrchestrator) -> None:
    """Prompt and cached tokens are counted where the prompt was read."""
    answer = await orchestrator.serve(COMPLETIONS, completion("[[cached=3]] a prompt", model=MODEL))
    assert answer.body is not None

    assert answer.body["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert answer.body["usage"]["prompt_tokens"] == answer.context["usage"]["prompt_tokens"]


async def test_answer_that_ends_in_the_context_leg_is_not_sent_on(orchestrator: StockOrchestrator) -> None:
    """A context leg that finds the end of the answer hands nothing over."""
    answer = await orchestrator.serve(CHAT, chat("[[text:]]", model=MODEL))

    assert (len(answer.sent), said(answer)) == (1, ("", "stop"))


async def test_signed_handoff_is_taken() -> None:
    """With a shared key on all three, the orchestrator's signature opens the generation leg; without it there is none."""
    async with driven(NEWER, KEY) as keyed:
        assert said(await keyed.serve(CHAT, chat(model=MODEL))) == words(await alone(keyed, CHAT, chat(model=MODEL)))

        keyed.key = None
        with pytest.raises(WorkerError) as caught:
            await keyed.serve(CHAT, chat(model=MODEL))
    assert caught.value.status == 400


async def test_state_is_handed_over_once(orchestrator: StockOrchestrator) -> None:
    """The same generation request a second time finds its state gone, and says what a fresh context leg may cure."""
    answer = await orchestrator.serve(CHAT, chat(model=MODEL))
    with pytest.raises(WorkerError) as caught:
        await orchestrator._answered(CHAT, answer.sent[1], Answer())

    assert caught.value.status == 503
    assert b"handoff_failed" in caught.value.body


async def test_only_peers_are_gone_on_from() -> None:
    """A worker with a list of peers tells its engine of no other address."""
    async with driven(NEWER, peer=("10.9.8.7",)) as orchestrator:
        with pytest.raises(WorkerError) as caught:
            await orchestrator.serve(CHAT, chat(model=MODEL))

    assert caught.value.status == 503


@pytest.mark.parametrize(
    ("fields", "param"), [({"echo": True, "logprobs": 1}, "echo"), ({"max_tokens": 0}, "max_tokens"), ({"n": 2}, "n")]
)
async def test_what_has_no_place_in_the_handoff_is_refused(
    fields: dict[str, Any], param: str, newer: StockOrchestrator
) -> None:
    """What only a hand-off of our own could carry is refused by name on the first leg."""
    with pytest.raises(WorkerError) as caught:
        await newer.serve(COMPLETIONS, completion(model=MODEL, **fields))

    assert (caught.value.status, f'"param":"{param}"'.encode() in caught.value.body) == (400, True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
async def test_our_gateway_runs_both_legs(version: str, stream: bool) -> None:
    """Behind our own gateway the answer is that of one worker, too."""
    async with driven(version) as pair:
        workers = {"context_worker": (pair.context_url,), "generation_worker": (pair.generation_url,)}
        async with serving_gateway(**workers) as url:
            reply = await pair.http.post(url + CHAT, json=chat(model=MODEL, stream=stream))
        counted = (await pair.http.get(pair.generation_url + "/metrics")).text
        whole = words(await alone(pair, CHAT, chat(model=MODEL)))

    answer = Answer(stream=reply.content) if stream else Answer(body=reply.json())
    assert said(answer) == whole
    assert "handoffs_received_total 1.0" in counted


# --- a stock peer on the other side ---


def stock_params(version: str, wire: dict[str, Any], kind: str) -> Any:
    """The library's params as trtllm-serve makes them of the wire's. Any: an object of the stand-in."""
    api = import_module(f"tests.fake_tensorrt_llm.{'v1_2_1' if version == '1.2.1' else 'v2026_07'}.api")
    known = api.DisaggregatedParams.__dataclass_fields__
    values = {name: value for name, value in wire.items() if name in known and value is not None}
    if wire.get("encoded_opaque_state") is not None:
        values["opaque_state"] = b64decode(wire["encoded_opaque_state"])
    if "schedule_style" in values:
        values["schedule_style"] = api.DisaggScheduleStyle(values["schedule_style"])
    return api.DisaggregatedParams(**values | {"request_type": kind})


async def run_stock(llm: Any, version: str, prompt: list[int], params: Any) -> Any:
    """One greedy request to the library itself, to its end. Any: objects of the stand-in."""
    api = import_module(type(llm).__module__)
    sampling = api.SamplingParams(
        max_tokens=12, min_tokens=0, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0
    )
    result = llm.generate_async(prompt, sampling, streaming=True, disaggregated_params=params)
    async for _ in result:
        pass
    return result.outputs[0]


@pytest.mark.parametrize("version", VERSIONS)
async def test_stock_generation_worker_goes_on_from_ours(version: str) -> None:
    """What our context worker replies is what a stock generation worker needs."""
    async with serving(trtllm(version)) as context, started(version) as stock, httpx2.AsyncClient() as http:
        params = {"request_type": "context_only", "disagg_request_id": 2**62 + 1, "schedule_style": 0}
        body = completion("Tell me something.", model=MODEL)
        reply = (await http.post(context.url + COMPLETIONS, json=body | {"disaggregated_params": params})).json()
        wire, prompt = reply["choices"][0]["disaggregated_params"], reply["prompt_token_ids"]
        whole = (await http.post(context.url + COMPLETIONS, json=body)).json()
        said = await run_stock(behind(stock), version, prompt, stock_params(version, wire, "generation_only"))

    text = bytes(token for token in said.token_ids if token < 256).decode("utf-8", "replace")
    assert text == whole["choices"][0]["text"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_our_generation_worker_goes_on_from_a_stock_one(version: str) -> None:
    """What a stock context worker replies is what our generation worker needs."""
    prompt = list(b"Tell me something.")
    body = completion(prompt, model=MODEL)
    async with serving(trtllm(version)) as generation, started(version) as stock, httpx2.AsyncClient() as http:
        asked = {"request_type": "context_only", "disagg_request_id": 2**62 + 3, "schedule_style": 0}
        made = (
            await run_stock(behind(stock), version, prompt, stock_params(version, asked, "context_only"))
        ).disaggregated_params
        wire = {
            "request_type": "generation_only",
            "first_gen_tokens": made.first_gen_tokens,
            "ctx_request_id": made.ctx_request_id,
            "encoded_opaque_state": b64encode(made.opaque_state).decode(),
            "draft_tokens": None,
            "disagg_request_id": getattr(made, "disagg_request_id", None),
            "ctx_info_endpoint": getattr(made, "ctx_info_endpoint", None),
            "schedule_style": 0,
        }
        continued = (await http.post(generation.url + COMPLETIONS, json=body | {"disaggregated_params": wire})).json()
        whole = (await http.post(generation.url + COMPLETIONS, json=body)).json()

    assert continued["choices"] == whole["choices"]


async def test_older_version_names_what_it_cannot_be_told() -> None:
    """A hand-off of a newer context worker is refused by an older one by the field it does not know."""
    params = {"request_type": "generation_only", "ctx_request_id": 5, "ctx_dp_rank": 1, "encoded_opaque_state": "AAAA"}
    async with serving(trtllm("1.2.1")) as worker, httpx2.AsyncClient() as http:
        reply = await http.post(worker.url + CHAT, json=chat(model=MODEL, disaggregated_params=params))

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "disaggregated_params.ctx_dp_rank")


async def test_server_info_publishes_the_engines_own_keys() -> None:
    """What generation legs that start first need stands in /server_info as the library tells it; an older one tells nothing."""
    published = {}
    for version in VERSIONS:
        async with serving(trtllm(version)) as worker, httpx2.AsyncClient() as http:
            published[version] = (await http.get(worker.url + "/server_info")).json()["disaggregated_params"]

    assert published == {"1.2.1": {}, NEWER: {"ctx_info_endpoint": ["tcp://127.0.0.1:5555"]}}
