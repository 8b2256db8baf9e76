"""Workers are found in a real etcd, whoever registered them, and are kept through everything that happens to it."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest

from gateway.cli import orchestrator_of
from gateway.config import GatewayConfig
from gateway.discovery.etcd import EtcdDiscovery
from tests.chaos.processes import Process
from tests.contract.conftest import GatewayUrl
from tests.etcd_process import Etcd, needs_etcd
from tests.fakes import ControlledEngine
from tests.stock import Ledger, StockWorker
from tests.stock.registration import register
from tests.worker_rig import Worker as RunningWorker
from tests.worker_rig import serving

pytestmark = needs_etcd

COMPLETIONS = "/v1/completions"
PROMPT: dict[str, Any] = {"model": "test-model", "prompt": "hello", "max_tokens": 6}
PATIENCE_SECONDS = 15.0


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[Etcd]:
    """One that runs."""
    member = Etcd(tmp_path)
    await member.start()
    yield member
    await member.close()


class Cluster:
    """Stock workers that hand over to each other, and a gateway that finds them."""

    def __init__(self, etcd: Etcd, stack: AsyncExitStack, gateway_url: GatewayUrl, http: httpx2.AsyncClient) -> None:
        self.etcd = etcd
        self.http = http
        self.url = ""
        self._ledger = Ledger()
        self._stack = stack
        self._gateway_url = gateway_url

    async def worker(self) -> StockWorker:
        """One more worker, not registered."""
        return await self._stack.enter_async_context(StockWorker(ledger=self._ledger))

    async def pair(self, seconds: int | None = None) -> tuple[StockWorker, StockWorker]:
        """Two more, registered, under leases of so many seconds."""
        context, generation = await self.worker(), await self.worker()
        await register(self.etcd, context, "CONTEXT", seconds=seconds)
        await register(self.etcd, generation, "GENERATION", seconds=seconds)
        return context, generation

    async def gateway(self, **settings: Any) -> None:
        """Start the gateway."""
        self.url = await self._gateway_url(cluster_uri=self.etcd.uri, **settings)

    async def info(self) -> dict[str, Any]:
        """What it says of its fleet."""
        info: dict[str, Any] = (await self.http.get(self.url + "/cluster_info")).json()
        return info

    async def ask(self, **fields: Any) -> httpx2.Response:
        """A request that takes both legs."""
        return await self.http.post(self.url + COMPLETIONS, json=PROMPT | fields)

    async def serves(self, context: int, generation: int) -> None:
        """Wait until so many workers can be given work."""

        async def counted() -> bool:
            lists = (await self.info())["server_lists"]
            return (len(lists["context"]), len(lists["generation"])) == (context, generation)

        await until(counted)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what other processes bring about; they say so only when asked."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await condition():  # noqa: ASYNC110  what another process knows sets no event here
            await asyncio.sleep(0.02)


@pytest.fixture
async def cluster(etcd: Etcd, gateway_url: GatewayUrl, http: httpx2.AsyncClient) -> AsyncIterator[Cluster]:
    """Nobody yet."""
    async with AsyncExitStack() as stack:
        yield Cluster(etcd, stack, gateway_url, http)


class TestComingAndGoing:
    async def test_registered_workers_are_there_from_the_start(self, cluster: Cluster) -> None:
        """A gateway that has started serves on the workers that were registered before."""
        context, generation = await cluster.pair()
        await cluster.gateway()

        assert (await cluster.ask()).status_code == 200
        assert (len(context.requests), len(generation.requests)) == (1, 1)

    async def test_a_worker_that_registers_is_prepared_and_added(self, cluster: Cluster) -> None:
        """Without workers the gateway is not ready; with the first pair it is, by itself."""
        await cluster.gateway()
        before = (await cluster.http.get(cluster.url + "/health"), await cluster.ask())
        await cluster.pair()
        await cluster.serves(1, 1)

        assert [reply.status_code for reply in before] == [503, 503]
        assert (await cluster.http.get(cluster.url + "/health")).status_code == 200
        assert (await cluster.ask()).status_code == 200

    async def test_a_worker_that_is_not_healthy_gets_no_work_until_it_is(self, cluster: Cluster) -> None:
        """It is known, but not among those that can be given work; the checks find it when it is well."""
        context, _ = await cluster.pair()
        context.behaviour.healthy = False
        await cluster.gateway()
        unwell = await cluster.info()
        context.behaviour.healthy = True
        await cluster.serves(1, 1)

        assert unwell["server_lists"]["context"] == []
        assert len(unwell["current_workers"]["context_servers"]) == 1

    async def test_a_lost_lease_removes_the_worker(self, cluster: Cluster) -> None:
        """A worker that gives no sign of life leaves with its lease."""
        await cluster.pair(seconds=1)
        await cluster.pair()
        await cluster.gateway()
        both = await cluster.info()
        await cluster.serves(1, 1)

        assert len(both["server_lists"]["context"]) == 2

    async def test_a_deleted_worker_finishes_what_it_has(self, cluster: Cluster) -> None:
        """A stream on a worker that leaves goes on to its end, while new requests go to others."""
        await cluster.pair()
        leaving = await cluster.worker()
        leaving.behaviour.hold_before_reply = True
        await cluster.gateway()
        key = await register(cluster.etcd, leaving, "GENERATION")
        await cluster.serves(1, 2)
        running = [asyncio.create_task(cluster.ask(stream=True)) for _ in range(2)]
        await until(lambda: _true(bool(leaving.requests)))
        await cluster.etcd.delete(key)
        await cluster.serves(1, 1)
        others = [await cluster.ask() for _ in range(3)]
        leaving.behaviour.resume.set()
        replies = await asyncio.gather(*running)

        assert [reply.status_code for reply in others] == [200, 200, 200]
        assert all(reply.content.endswith(b"data: [DONE]\n\n") for reply in replies)
        assert len(leaving.requests) == 1

    async def test_another_life_at_the_same_address_takes_the_place_of_the_first(self, cluster: Cluster) -> None:
        """A worker that was restarted is one worker, also when the lease of its first life ends."""
        context, _ = await cluster.pair()
        await cluster.gateway()
        old = next(key for key in await cluster.etcd.keys("/trtllm-disagg/") if "CONTEXT" in key)
        new = await register(cluster.etcd, context, "CONTEXT")
        await until(lambda: _is_registered(cluster, new))
        await cluster.etcd.delete(old)
        await cluster.pair()
        await cluster.serves(2, 2)

        assert await _is_registered(cluster, new)

    @pytest.mark.parametrize(
        "value",
        [
            "no json",
            '{"worker_id": "x", "host": "127.0.0.1", "port": 0, "role": 0}',
            '{"worker_id": "x", "host": "127.0.0.1", "port": 1, "role": 2}',
            '{"worker_id": "x", "host": "a?b#c", "port": 1, "role": 0}',
        ],
    )
    async def test_a_key_that_is_no_worker_of_ours_is_passed_over(self, value: str, cluster: Cluster) -> None:
        """Other roles, and values that nobody can use, keep nobody from being served."""
        await cluster.etcd.put("/trtllm-disagg//workers/x", value)
        await cluster.pair()
        await cluster.gateway()
        await cluster.etcd.put("/trtllm-disagg//workers/y", value)
        await cluster.pair()
        await cluster.serves(2, 2)

        assert (await cluster.ask()).status_code == 200

    async def test_only_the_own_cluster_is_looked_at(self, cluster: Cluster) -> None:
        """Workers of a cluster of another name are others' workers."""
        stranger = await cluster.worker()
        await register(cluster.etcd, stranger, "CONTEXT", cluster="other")
        await cluster.pair()
        await cluster.gateway()

        assert len((await cluster.info())["current_workers"]["context_servers"]) == 1


async def _true(condition: bool) -> bool:
    return condition


async def _is_registered(cluster: Cluster, key: str) -> bool:
    known = (await cluster.info())["current_workers"]
    return any(key.endswith(worker["worker_id"]) for workers in known.values() for worker in workers)


class TestReadiness:
    async def test_minimal_instances_are_waited_for(self, cluster: Cluster) -> None:
        """Below the minimum every request is a 503, and the gateway is not ready; above it both change."""
        await cluster.pair()
        await cluster.gateway(min_generation_workers=2)
        few = (await cluster.http.get(cluster.url + "/health"), await cluster.ask())
        info = await cluster.info()
        await register(cluster.etcd, await cluster.worker(), "GENERATION")
        await cluster.serves(1, 2)

        assert [reply.status_code for reply in few] == [503, 503]
        assert (info["is_ready"], info["minimal_instances"]) == (False, {"context_servers": 1, "generation_servers": 2})
        assert (await cluster.info())["is_ready"]
        assert (await cluster.ask()).status_code == 200

    async def test_cluster_info_has_the_registrations(self, cluster: Cluster) -> None:
        """Who is registered is shown as it was written."""
        context, _ = await cluster.pair()
        await cluster.gateway()
        (value,) = [
            json.loads(pair["value"]) for key, pair in (await cluster.etcd.keys("/")).items() if "CONTEXT" in key
        ]
        info = await cluster.info()

        assert info["current_workers"]["context_servers"] == [value]
        assert info["server_lists"]["context"] == [context.url.removeprefix("http://")]


class TestEtcdItself:
    async def test_without_etcd_the_last_fleet_serves_on(self, cluster: Cluster) -> None:
        """An etcd that went away takes no worker with it."""
        await cluster.pair(seconds=1)
        await cluster.gateway()
        cluster.etcd.kill()
        replies = [await cluster.ask() for _ in range(5)]

        assert [reply.status_code for reply in replies] == [200] * 5
        assert (await cluster.info())["is_ready"]

    async def test_an_etcd_that_comes_later_is_found(self, cluster: Cluster) -> None:
        """A gateway that starts without etcd is not ready, and becomes so when there is one."""
        cluster.etcd.kill()
        await cluster.gateway()
        before = await cluster.http.get(cluster.url + "/health")
        await cluster.etcd.start()
        await cluster.pair()
        await cluster.serves(1, 1)

        assert before.status_code == 503

    async def test_a_restarted_etcd_is_watched_again(self, cluster: Cluster) -> None:
        """What changes after a restart is seen, and what did not change stays."""
        await cluster.pair()
        await cluster.gateway()
        cluster.etcd.kill()
        await cluster.etcd.start()
        await cluster.pair()
        await cluster.serves(2, 2)

        assert (await cluster.ask()).status_code == 200

    async def test_an_etcd_without_memory_leaves_workers_time_to_register_again(self, cluster: Cluster) -> None:
        """Workers whose keys are lost stay as long as a lease; who has not registered again by then leaves."""
        context, _ = await cluster.pair()
        await cluster.gateway(inactive_timeout=3.0)
        cluster.etcd.kill()
        cluster.etcd.forget()
        await cluster.etcd.start()
        await cluster.pair()
        await cluster.serves(2, 2)
        await register(cluster.etcd, context, "CONTEXT")
        await cluster.serves(2, 1)

        assert (await cluster.ask()).status_code == 200

    async def test_compaction_is_survived(self, cluster: Cluster) -> None:
        """A watch goes on through a compaction."""
        await cluster.pair()
        await cluster.gateway()
        await cluster.pair()
        await cluster.etcd.compact()
        await cluster.pair()
        await cluster.serves(3, 3)

        assert (await cluster.ask()).status_code == 200

    async def test_a_watch_from_a_compacted_revision_asks_for_the_list(self, etcd: Etcd) -> None:
        """A revision that is gone ends the watch at once and without an error, so that the keys are listed again."""
        await etcd.put("/trtllm-disagg//workers/x", "1")
        await etcd.put("/trtllm-disagg//workers/x", "2")
        await etcd.compact()
        discovery = orchestrator_of(GatewayConfig(cluster_uri=etcd.uri)).discovery
        assert isinstance(discovery, EtcdDiscovery)

        async with aiohttp.ClientSession() as http, asyncio.timeout(PATIENCE_SECONDS):
            await discovery._watch(http, 0)


class TestOurWorkers:
    async def test_a_worker_registers_as_stock_workers_do(self, etcd: Etcd) -> None:
        """Key and value are the documented ones, under a lease."""
        async with worker(etcd, cluster_name="mine") as running:
            await until(lambda: _has_keys(etcd, 1))
            ((key, pair),) = (await etcd.keys("/trtllm-disagg/mine/workers/")).items()

        value = json.loads(pair["value"])
        assert key == f"/trtllm-disagg/mine/workers/{value['worker_id']}"
        assert (value["host"], value["port"], value["role"]) == ("127.0.0.1", running.port, 1)
        assert re.fullmatch(rf"GENERATION-127\.0\.0\.1:{running.port}-\d{{13}}-\d+-\d{{3}}", value["worker_id"])
        assert int(pair["lease"]) > 0

    async def test_the_heartbeat_keeps_the_key(self, etcd: Etcd) -> None:
        """A lease of one second outlives another one of two that nobody keeps."""
        async with worker(etcd):
            await until(lambda: _has_keys(etcd, 1))
            before = await etcd.keys("/trtllm-disagg/")
            await etcd.put("/timer", "x", seconds=2)
            await until(lambda: _lacks(etcd, "/timer"))

            assert await etcd.keys("/trtllm-disagg/") == before

    async def test_the_key_is_deleted_before_the_worker_drains(self, etcd: Etcd) -> None:
        """While the last answer is still being written, nobody finds the worker any more."""
        engine = ControlledEngine()
        async with worker(etcd, engine, grace=PATIENCE_SECONDS) as running, httpx2.AsyncClient() as http:
            await until(lambda: _has_keys(etcd, 1))
            body = {"model": "fake", "prompt": "hi", "max_tokens": 4}
            answering = asyncio.create_task(http.post(running.url + COMPLETIONS, json=body))
            sequence = await engine.asked()
            running.life.stop()
            await until(lambda: _has_keys(etcd, 0))
            unfinished = not answering.done()
            sequence.say("done", "stop")

            assert (unfinished, (await answering).status_code) == (True, 200)

    async def test_a_forgotten_worker_registers_again(self, etcd: Etcd) -> None:
        """An etcd that lost its data, or was away for longer than a lease, has the key again soon."""
        async with worker(etcd):
            await until(lambda: _has_keys(etcd, 1))
            etcd.kill()
            etcd.forget()
            await etcd.start()
            await until(lambda: _has_keys(etcd, 1))

    async def test_an_etcd_that_is_not_there_stops_no_worker(self, etcd: Etcd) -> None:
        """The worker serves, registers when there is an etcd, and ends in time when there is none."""
        etcd.kill()
        async with worker(etcd) as running, httpx2.AsyncClient() as http:
            alone = await http.get(running.url + "/health")
            await etcd.start()
            await until(lambda: _has_keys(etcd, 1))
            etcd.kill()

        assert alone.status_code == 200


async def test_our_own_programs_find_each_other(etcd: Etcd, tmp_path: Path, http: httpx2.AsyncClient) -> None:
    """Two workers and a gateway that know nothing but etcd serve; a worker that is told to stop is gone at once."""
    cluster = ("--cluster-uri", etcd.uri, "--cluster-name", "ours", "--internal-key", "k")
    flags = ("--engine", "scripted", *cluster)
    workers = [Process("worker", tmp_path / role, *flags, "--role", role) for role in ("context", "generation")]
    gateway = Process("gateway", tmp_path / "gateway", *cluster)
    try:
        for process in (*workers, gateway):
            await process.start()
        model = (await http.get(gateway.url + "/v1/models")).json()["data"][0]["id"]
        reply = await http.post(gateway.url + COMPLETIONS, json=PROMPT | {"model": model})
        workers[1].send(signal.SIGTERM)

        assert reply.status_code == 200
        assert workers[1].wait(PATIENCE_SECONDS) == 0
        await until(lambda: _unavailable(http, gateway.url))
        assert list(await etcd.keys("/trtllm-disagg/ours/workers/GENERATION")) == []
    finally:
        for process in (*workers, gateway):
            process.end()


async def _unavailable(http: httpx2.AsyncClient, url: str) -> bool:
    return (await http.get(url + "/health")).status_code == 503


def worker(
    etcd: Etcd, engine: ControlledEngine | None = None, **settings: Any
) -> AbstractAsyncContextManager[RunningWorker]:
    """A generation worker of ours that registers, with a lease of one second."""
    timing = {"heartbeat_interval": 0.2, "inactive_timeout": 1.0, "role": "generation"}
    return serving(engine or ControlledEngine(), cluster_uri=etcd.uri, **timing | settings)


async def _has_keys(etcd: Etcd, count: int) -> bool:
    return len(await etcd.keys("/trtllm-disagg/")) == count


async def _lacks(etcd: Etcd, key: str) -> bool:
    return key not in await etcd.keys("/")
