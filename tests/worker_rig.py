"""A worker's service around an engine a test brings, and a whole worker on a real socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from schemas.codec import read_chat_json, read_completion_json
from schemas.events import Event
from worker.answer import Request
from worker.config import WorkerConfig
from worker.engines.base import Engine, EngineFacts
from worker.handoff import HandoffClient
from worker.handoff_store import HandoffStore
from worker.legs import Handoffs
from worker.metrics import Counters
from worker.server import Life, bind, serve_engine
from worker.service import Service

BASE_URL = "http://context.example"
PATIENCE_SECONDS = 5.0


def make_service(engine: Engine, facts: EngineFacts, *, max_requests: int = 8, seconds: float = 5.0) -> Service:
    """A service that serves the engine's own model and can keep 1 MiB of states."""
    counters = Counters()
    store = HandoffStore(1 << 20, seconds)
    handoffs = Handoffs(facts, store, HandoffClient(None, frozenset(), 1 << 20), BASE_URL, counters)
    return Service(engine, facts, handoffs, counters, model=facts.model, max_requests=max_requests)


def chat(content: str = "hi", **fields: Any) -> Request:
    """A chat request as it is read. Any: fields of every type."""
    messages = [{"role": "user", "content": content}]
    return read_chat_json(
        httpx2.Request("POST", "http://a", json={"model": "fake", "messages": messages} | fields).content
    )


def completion(prompt: Any = "hi", **fields: Any) -> Request:
    """A completions request as it is read. Any: prompts are text, ids, or lists of them."""
    return read_completion_json(
        httpx2.Request("POST", "http://a", json={"model": "fake", "prompt": prompt} | fields).content
    )


async def collect(
    service: Service, request: Request, request_id: str = "r", seconds: float | None = None
) -> list[Event]:
    """Everything a request is answered with."""
    async with service.run("chat", request_id, seconds) as run:
        return [event async for batch in service.batches(run, request) for event in batch]


class Worker:
    """A running worker: where it listens, how it is stopped, and the task that ends with it."""

    def __init__(self, port: int, life: Life, running: asyncio.Task[None]) -> None:
        self.host, self.port = "127.0.0.1", port
        self.url = f"http://127.0.0.1:{port}"
        self.life = life
        self.running = running


@asynccontextmanager
async def serving(engine: Engine, **config: Any) -> AsyncIterator[Worker]:
    """A worker on a free port of 127.0.0.1, as `packrelay-worker` makes it but for its signals. Any: fields of WorkerConfig."""
    life = Life()
    with bind("127.0.0.1", 0) as listener:
        settings = WorkerConfig(**{"grace": 0.0} | config)
        running = asyncio.create_task(serve_engine(engine, settings, listener, life), name="worker")
        await asyncio.wait_for(life.listening.wait(), PATIENCE_SECONDS)
        try:
            yield Worker(listener.getsockname()[1], life, running)
        finally:
            life.stop()
            life.stop()
            await asyncio.wait_for(running, PATIENCE_SECONDS)
