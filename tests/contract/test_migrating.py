"""What docs/migrating.md says of the file of `trtllm-serve disaggregated`, in front of stock workers."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.cli import main, parse
from tests.chaos.processes import Process
from tests.etcd_process import Etcd, needs_etcd
from tests.stock import Ledger, StockWorker
from tests.stock.registration import register
from tests.stock.versions import NEWEST, RELEASE_1_2, Version

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO: dict[str, Any] = {
    "model": "test-model",
    "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
    "max_tokens": 6,
}
PROMPT: dict[str, Any] = {"model": "test-model", "prompt": "hello", "max_tokens": 6}

FILE = """
hostname: localhost
port: 8000
model: TinyLlama/TinyLlama-1.1B-Chat-v1.0
free_gpu_memory_fraction: 0.25
backend: "pytorch"
disable_overlap_scheduler: True
max_retries: 1
"""
WITH_URLS = """
context_servers:
  num_instances: 1
  tensor_parallel_size: 1
  pipeline_parallel_size: 1
  kv_cache_config:
    free_gpu_memory_fraction: 0.2
  cache_transceiver_config:
    backend: DEFAULT
  urls:
    - "{context}"
generation_servers:
  num_instances: 1
  tensor_parallel_size: 1
  cache_transceiver_config:
    backend: DEFAULT
  urls:
    - "{generation}"
"""
WITH_ETCD = """
disagg_cluster:
  cluster_uri: {etcd}
  cluster_name: example
  minimal_instances:
    context_servers: 1
    generation_servers: 1
  heartbeat_interval_sec: 5
  inactive_timeout_sec: 10
"""


class Site:
    """One site that migrates: stock workers, the file, and packrelay-gateway as a process."""

    def __init__(self, folder: Path, stack: AsyncExitStack, http: httpx2.AsyncClient) -> None:
        self.file = folder / "disagg_config.yaml"
        self.log = folder / "gateway.log"
        self.http = http
        self.url = ""
        self.context: StockWorker
        self.generation: StockWorker
        self._stack = stack

    async def workers(self, version: Version = NEWEST) -> None:
        """Start one of each."""
        ledger = Ledger()
        start = self._stack.enter_async_context
        self.context = await start(StockWorker(ledger=ledger, version=version))
        self.generation = await start(StockWorker(ledger=ledger, version=version))

    def text(self, more: str = "") -> str:
        """A file with their urls."""
        context, generation = (worker.url.removeprefix("http://") for worker in (self.context, self.generation))
        return FILE + more + WITH_URLS.format(context=context, generation=generation)

    async def gateway(self, text: str, *flags: str) -> None:
        """Start the gateway on a file. Its port is the test's: a flag wins over the file."""
        self.file.write_text(text)
        process = Process("gateway", self.log, "--config", str(self.file), *flags)
        self._stack.callback(process.end)
        await process.start()
        self.url = process.url

    async def ask(self, path: str, body: dict[str, Any], **fields: Any) -> httpx2.Response:
        """A client's request."""
        return await self.http.post(self.url + path, json=body | fields)


@pytest.fixture
async def site(tmp_path: Path, http: httpx2.AsyncClient) -> AsyncIterator[Site]:
    """One with workers, before it migrates."""
    async with AsyncExitStack() as stack:
        made = Site(tmp_path, stack, http)
        await made.workers()
        yield made


async def test_the_file_serves_stock_workers_at_its_urls(site: Site) -> None:
    """Both endpoints, whole and streamed, by both legs."""
    await site.gateway(site.text())
    whole = [await site.ask(path, body) for path, body in ((CHAT, HELLO), (COMPLETIONS, PROMPT))]
    streams = [await site.ask(path, body, stream=True) for path, body in ((CHAT, HELLO), (COMPLETIONS, PROMPT))]

    assert [reply.status_code for reply in whole] == [200, 200]
    assert all(stream.content.endswith(b"data: [DONE]\n\n") for stream in streams)
    assert (len(site.context.requests), len(site.generation.requests)) == (4, 4)


@needs_etcd
async def test_the_file_serves_stock_workers_from_etcd(site: Site, tmp_path: Path) -> None:
    """With a cluster in the file the workers are those that are registered in etcd."""
    etcd = Etcd(tmp_path)
    try:
        await etcd.start()
        await register(etcd, site.context, "CONTEXT", cluster="example")
        await register(etcd, site.generation, "GENERATION", cluster="example")
        await site.gateway(FILE + WITH_ETCD.format(etcd=etcd.uri))
        info = (await site.http.get(site.url + "/cluster_info")).json()

        assert (await site.ask(CHAT, HELLO)).status_code == 200
        assert (info["is_ready"], len(info["current_workers"]["generation_servers"])) == (True, 1)
        assert len(site.generation.requests) == 1
    finally:
        await etcd.close()


async def test_keys_that_change_nothing_are_said_once(site: Site) -> None:
    """One line on stderr and one in the log name them."""
    await site.gateway(site.text())
    lines = site.log.read_text().splitlines()
    (said,) = [line for line in lines if line.startswith("packrelay-gateway: ")]
    (logged,) = [json.loads(line) for line in lines if "gateway.config_ignored" in line]

    assert "these keys change nothing here: " in said
    assert "model, free_gpu_memory_fraction, backend, disable_overlap_scheduler" in said
    assert "context_servers.kv_cache_config" in said
    assert "context_servers.kv_cache_config" in logged["keys"]
    assert "urls" not in said


async def test_history_is_left_out_of_the_generation_leg(site: Site) -> None:
    """The generation worker gets the last message and the prompt's ids; the context worker gets everything."""
    await site.gateway(site.text("gen_strip_message_history: true\n"))
    reply = await site.ask(CHAT, HELLO)

    assert reply.status_code == 200
    assert site.context.requests[0].decoded()["messages"] == HELLO["messages"]
    assert site.generation.requests[0].decoded()["messages"] == HELLO["messages"][1:]


async def test_a_template_from_outside_needs_permission(site: Site) -> None:
    """It is refused by name, and passed on where the file allows it."""
    await site.gateway(site.text())
    refused = await site.ask(CHAT, HELLO, chat_template="{{ messages }}")
    await site.gateway(site.text("allow_request_chat_template: true\n"))
    allowed = await site.ask(CHAT, HELLO, chat_template="{{ messages }}")

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template")
    assert allowed.status_code == 200
    assert site.context.requests[0].decoded()["chat_template"] == "{{ messages }}"


async def test_health_is_about_now(site: Site) -> None:
    """When the only context worker is gone, the gateway is not ready any more."""
    await site.gateway(site.text())
    before = await site.http.get(site.url + "/health")
    await site.context.stop()
    await site.ask(COMPLETIONS, PROMPT)  # Finds that nobody is there; the checks would, a moment later.

    assert before.status_code == 200
    assert (await site.http.get(site.url + "/health")).status_code == 503


async def test_the_models_are_listed(site: Site) -> None:
    """The workers' model is the gateway's."""
    await site.gateway(site.text())
    models = (await site.http.get(site.url + "/v1/models")).json()

    assert [model["id"] for model in models["data"]] == ["test-model"]


def test_the_router_is_ours_where_the_file_names_none(tmp_path: Path) -> None:
    """A file without a router leaves the choice to our default."""
    (tmp_path / "f").write_text(FILE + WITH_URLS.format(context="c:1", generation="g:1"))
    config = parse(["--config", str(tmp_path / "f")])

    assert config is not None
    assert (config.router, config.context_router, config.generation_router) == ("least_loaded", None, None)


async def test_a_router_that_is_missing_is_refused_or_replaced(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """The program ends with the router's name; with a fallback it serves, and says so."""
    text = site.text("router: {type: kv_cache_aware}\n")
    site.file.write_text(text)
    status = main(["--config", str(site.file)])
    await site.gateway(text, "--router-fallback", "least_loaded")

    assert (status, "the router kv_cache_aware does not exist here yet" in capsys.readouterr().err) == (2, True)
    assert (await site.ask(CHAT, HELLO)).status_code == 200
    assert "router.type" in site.log.read_text()


async def test_other_apis_are_not_there(site: Site) -> None:
    """What is not served is a 404 with the error object."""
    await site.gateway(site.text())
    replies = [await site.ask(path, {}) for path in ("/v1/responses", "/v1/messages", "/v1/messages/count_tokens")]

    assert [reply.status_code for reply in replies] == [404, 404, 404]
    assert all("error" in reply.json() for reply in replies)


async def test_a_worker_without_msgpack_cannot_be_used(site: Site) -> None:
    """It takes the frame for broken JSON, and the client is told that the worker refused."""
    await site.workers(RELEASE_1_2)
    await site.gateway(site.text())

    assert (await site.ask(COMPLETIONS, PROMPT)).status_code == 400
