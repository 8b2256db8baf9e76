"""The vendored cases in which a worker fails: what the client is told, whatever way that happens."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.codec import MSGPACK_TYPE
from tests.chaos.processes import running
from tests.chaos.raw_client import post
from tests.contract.conformance.case import Filling, cases
from tests.contract.conformance.checks import exchange_of, run
from tests.contract.conformance.wire import Client
from tests.contract.conftest import GatewayUrl
from tests.e2e.conftest import MODEL_MARKS
from tests.stock import Refusal, StockWorker

SCRIPT = "[[itl_ms:20]] [[tokens:2000]]"
"""For the scripted engine: an answer that takes its time."""

WITHOUT_ANSWER = msgspec.msgpack.encode({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"})
ERRONEOUS = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "test-model", "choices": 5}

MALFORMED = {
    "truncated msgpack": Refusal(200, WITHOUT_ANSWER[:-3], MSGPACK_TYPE),
    "trailing bytes": Refusal(200, WITHOUT_ANSWER + b"\xc0", MSGPACK_TYPE),
    "no choices": Refusal(200, WITHOUT_ANSWER, MSGPACK_TYPE),
    "truncated JSON": Refusal(200, b'{"id": "chatcmpl-1", "choices": ['),
    "wrong type": Refusal(200, json.dumps(ERRONEOUS).encode()),
    "a page": Refusal(200, b"<html>504 Gateway Time-out</html>", "text/html"),
    "nothing": Refusal(200, b""),
    "null": Refusal.fatal(),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("legs", [1, 2])
async def test_reply_that_is_none_is_a_502(name: str, legs: int, gateway_url: GatewayUrl) -> None:
    """ovl-007: what a worker answers is not relayed unless it is an answer; the client gets the error object."""
    async with StockWorker() as worker:
        workers = (worker.url,)
        settings = {"worker": workers} if legs == 1 else {"context_worker": workers, "generation_worker": workers}
        gateway = Client(await gateway_url(**settings), Filling(model="test-model", key=""))
        worker.behaviour.refusal = MALFORMED[name]
        exchange = await asyncio.to_thread(exchange_of, cases()["ovl-007-malformed-worker-reply"], gateway, gateway)

    run(exchange)


ENGINES = [
    pytest.param((), {"model": "scripted", "messages": [{"role": "user", "content": SCRIPT}]}, id="scripted"),
    pytest.param(
        ("--engine", "llama_cpp"),
        {"model": "SmolLM2-135M-Instruct", "ignore_eos": True},
        id="model",
        marks=[*MODEL_MARKS, pytest.mark.slow],
    ),
]


@pytest.mark.parametrize(("flags", "changes"), ENGINES)
async def test_stream_of_a_killed_worker_ends_with_an_error_record(
    tmp_path: Path, flags: tuple[str, ...], changes: dict[str, Any]
) -> None:
    """ovl-003: the client gets what was said, then an error record, and nothing that looks like an end."""
    body = cases()["ovl-003-decode-dies-midstream"].request["body"]
    async with running(tmp_path / "log", worker_flags=flags) as fleet:
        begun = asyncio.Event()
        streamed = asyncio.create_task(post(fleet.gateway.url, body | changes, begun=begun))
        await begun.wait()
        fleet.generation.kill()
        got = await streamed

    assert got is not None
    assert (got.status, got.terminals, b"[DONE]" in got.body) == (200, 1, False)
    last = got.body.rstrip().rpartition(b"\n")[2]
    assert set(json.loads(last.removeprefix(b"data: "))["error"]) == {"message", "type", "param", "code"}
