"""A worker over TensorRT-LLM when things go wrong, on a stand-in of each supported version."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.contract.test_stock_orchestrator import chat
from tests.fake_tensorrt_llm import MODEL, VERSIONS
from tests.trtllm_rig import behind, trtllm
from tests.worker_rig import Worker, serving
from worker.engines.tensorrt_llm.engine import TensorrtLlmEngine

CHAT = "/v1/chat/completions"
PATIENCE = 5.0


@pytest.fixture(params=VERSIONS)
def engine(request: pytest.FixtureRequest) -> TensorrtLlmEngine:
    """The engine of each version."""
    return trtllm(request.param, slots="4")


@pytest.fixture
async def worker(engine: TensorrtLlmEngine) -> AsyncIterator[Worker]:
    """A worker over it."""
    async with serving(engine) as made:
        yield made


@pytest.fixture
async def http(worker: Worker) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the worker."""
    async with httpx2.AsyncClient(base_url=worker.url, timeout=PATIENCE) as client:
        yield client


def endless(content: str = "Tell me.", **fields: Any) -> dict[str, Any]:
    """A request whose answer does not end soon. Any: fields of every type."""
    return chat(content, **{"model": MODEL, "max_tokens": 1500, "ignore_eos": True, "stream": True, **fields})


async def quiet(engine: TensorrtLlmEngine) -> None:
    """Return once the executor has nothing left to do."""
    await asyncio.wait_for(behind(engine).executor.idle.wait(), PATIENCE)


async def test_failed_request_is_an_error_of_its_own(http: httpx2.AsyncClient) -> None:
    """A request that the executor fails is a 500, and the next one is served."""
    failed = await http.post(CHAT, json=chat("[[fail=0]]", model=MODEL))
    served = await http.post(CHAT, json=chat(model=MODEL))

    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "engine_failed")
    assert served.status_code == 200


async def test_failure_in_a_stream_ends_it_with_an_error_record(http: httpx2.AsyncClient) -> None:
    """What was said is delivered, then one error record, and no [DONE]."""
    reply = await http.post(CHAT, json=chat("[[fail=3]]", model=MODEL, stream=True))
    *records, last, rest = reply.text.split("\n\n")

    assert (len(records) >= 1, rest) == (True, "")
    assert json.loads(last[6:])["error"]["code"] == "engine_failed"


async def test_lost_executor_ends_everything(http: httpx2.AsyncClient) -> None:
    """Once the executor is lost, the stream ends with an error, health says so, and new requests hear 503."""
    reply = await http.post(CHAT, json=chat("[[die=2]]", model=MODEL, stream=True))
    health = await http.get("/health")
    later = await http.post(CHAT, json=chat(model=MODEL))

    assert json.loads(reply.text.split("\n\n")[-2][6:])["error"]["code"] == "engine_dead"
    assert (health.status_code, later.status_code) == (503, 503)


async def test_unhealthy_executor_is_seen_without_a_request(
    engine: TensorrtLlmEngine, http: httpx2.AsyncClient
) -> None:
    """Health asks the executor, so a worker that serves nobody notices too."""
    before = await http.get("/health")
    behind(engine).executor.dead = True
    after = await http.get("/health")

    assert (before.status_code, after.status_code) == (200, 503)


async def test_client_that_leaves_aborts(engine: TensorrtLlmEngine, http: httpx2.AsyncClient) -> None:
    """A closed connection ends the sequence in the executor, also while it is silent."""
    async with http.stream("POST", CHAT, json=endless("[[silent=2]]")) as reply:
        await anext(reply.aiter_bytes())
    await quiet(engine)

    assert len(behind(engine).executor.aborted) == 1


async def test_client_that_leaves_during_prefill_aborts(engine: TensorrtLlmEngine, http: httpx2.AsyncClient) -> None:
    """The same before anything was said."""
    waiting = asyncio.create_task(http.post(CHAT, json=endless("[[ttft_ms=3600000]]", stream=False)), name="waiting")
    await asyncio.wait_for(behind(engine).executor.busy.wait(), PATIENCE)
    waiting.cancel()
    await asyncio.wait([waiting])
    await quiet(engine)

    assert len(behind(engine).executor.aborted) == 1


async def test_stop_string_aborts(engine: TensorrtLlmEngine, http: httpx2.AsyncClient) -> None:
    """An answer that is over for its reader is over in the executor."""
    reply = await http.post(CHAT, json=endless("[[text:one two three]]", stop=["two"], stream=False))
    await quiet(engine)

    assert reply.json()["choices"][0]["message"]["content"] == "one "


async def test_deadline_aborts(engine: TensorrtLlmEngine, http: httpx2.AsyncClient) -> None:
    """A request that takes too long is ended, and its sequence with it."""
    headers = {"x-packrelay-deadline-ms": "50"}
    reply = await http.post(CHAT, json=endless("[[silent=0]]", stream=False), headers=headers)
    await quiet(engine)

    assert reply.status_code == 504


async def test_form_that_cannot_be_held_is_the_clients(http: httpx2.AsyncClient) -> None:
    """An expression for which the executor finds no grammar is a 400 that names the field."""
    form = {"type": "regex", "regex": "z{999}"}
    reply = await http.post(CHAT, json=chat(model=MODEL, response_format=form))

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "response_format")


async def test_shutdown_tells_what_runs(worker: Worker, http: httpx2.AsyncClient) -> None:
    """A stream that is cut by the end of the worker ends with an error record."""
    async with http.stream("POST", CHAT, json=endless("[[silent=2]]")) as reply:
        pieces = reply.aiter_text()
        told = await anext(pieces)
        worker.life.stop()
        async for piece in pieces:
            told += piece

    assert json.loads(told.split("\n\n")[-2][6:])["error"]["code"] == "shutting_down"


async def test_events_are_refused_where_the_library_keeps_none(http: httpx2.AsyncClient) -> None:
    """Without a buffer for them there are no KV-cache events, and the refusal says which setting has it."""
    reply = await http.post("/kv_cache_events")

    assert (reply.status_code, "event_buffer_max_size" in reply.json()["error"]["message"]) == (400, True)


async def test_statistics_are_told(http: httpx2.AsyncClient) -> None:
    """What the executor's iterations did is told once, in the library's own words."""
    await http.post(CHAT, json=chat(model=MODEL))
    first, second = [(await http.get("/_packrelay/iteration_stats")).json() for _ in range(2)]

    assert ([entry["type"] for entry in first], second) == (["stored"], [])
