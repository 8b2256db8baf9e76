"""HTTPS on every hop, the internal key asked for at the worker's port, and hand-offs only from the known fleet: real processes."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from schemas.disagg import worker_signature
from tests.chaos.processes import Process, running
from tests.chaos.raw_client import chat, post
from tests.worker_rig import serving
from worker.engines import create_engine

CERTIFICATE = Path(__file__).parents[1] / "unit" / "links" / "tls" / "localhost.crt"
PAIR = (str(CERTIFICATE), str(CERTIFICATE.with_suffix(".key")))
SERVES = ("--tls-cert", PAIR[0], "--tls-key", PAIR[1])
MUTUAL = (*SERVES, "--tls-ca", PAIR[0])
TRUSTS = ("--link-tls-ca", PAIR[0])
SHOWS = (*TRUSTS, "--link-tls-cert", PAIR[0], "--link-tls-key", PAIR[1])
KEY = ("--internal-key", "k")
IN_TIME = 20.0


class SecureLegs:
    """Two workers that serve HTTPS and take work, and fetch states, only from the fleet; a gateway in front of them."""

    def __init__(self, log: Path, *gateway_flags: str) -> None:
        self.context = _worker(log, "context")
        self.generation = _worker(log, "generation", "--peer", f"localhost:{self.context.port}")
        self.gateway = Process(
            "gateway",
            log,
            *KEY,
            *gateway_flags,
            *("--context-worker", f"https://localhost:{self.context.port}"),
            *("--generation-worker", f"https://localhost:{self.generation.port}"),
        )


def _worker(log: Path, role: str, *flags: str) -> Process:
    worker = Process("worker", log, "--engine", "scripted", "--role", role, *KEY, "--require-key", *MUTUAL, *flags)
    worker.add_flags("--advertise-url", f"https://localhost:{worker.port}")
    return worker


@asynccontextmanager
async def secure_legs(log: Path, *gateway_flags: str) -> AsyncIterator[SecureLegs]:
    """A fleet that is gone when the block is left; the gateway may not be ready yet."""
    fleet = SecureLegs(log, *gateway_flags)
    processes = (fleet.context, fleet.generation, fleet.gateway)
    try:
        for process in processes:
            process.spawn()
        yield fleet
    finally:
        for process in processes:
            process.end()


@pytest.mark.parametrize("stream", [False, True])
async def test_every_inner_hop_is_https(tmp_path: Path, stream: bool) -> None:
    """Gateway to workers, and worker to worker: certificates are shown and checked on both sides, and the answer is there."""
    async with secure_legs(tmp_path / "log", *SHOWS) as fleet:
        await fleet.gateway.until_healthy()
        got = await post(fleet.gateway.url, chat("scripted", "[[text:fine]]", stream=stream))

    assert got is not None
    assert (got.status, got.failed) == (200, False)


async def test_a_gateway_without_a_certificate_is_not_served(tmp_path: Path) -> None:
    """Mutual TLS: who shows none is told nothing, and the gateway says that it has no workers."""
    async with secure_legs(tmp_path / "log", *TRUSTS) as fleet:
        async with asyncio.timeout(IN_TIME):
            while not (status := await status_of(fleet.gateway)):
                pass

    assert status == 503


async def status_of(gateway: Process) -> int:
    """The status of a chat, 0 while the gateway does not listen yet."""
    try:
        got = await post(gateway.url, chat("scripted", "hello"))
    except OSError:
        return 0
    return got.status if got else 0


async def test_clients_are_served_https(tmp_path: Path) -> None:
    """The gateway's own certificate is the one clients see."""
    worker = Process("worker", tmp_path / "log", "--engine", "scripted")
    gateway = Process("gateway", tmp_path / "log", "--worker", worker.url, *SERVES)
    try:
        await worker.start()
        gateway.spawn()
        trusting = ssl.create_default_context(cafile=PAIR[0])
        async with httpx2.AsyncClient(verify=trusting) as client, asyncio.timeout(IN_TIME):
            url = f"https://localhost:{gateway.port}"
            while not await https_answers(client, url):
                assert gateway.is_running()
            reply = await client.post(f"{url}/v1/chat/completions", json=chat("scripted", "[[text:fine]]"))
    finally:
        gateway.end()
        worker.end()

    assert reply.status_code == 200
    assert json.loads(reply.content)["choices"][0]["message"]["content"] == "fine"


async def https_answers(client: httpx2.AsyncClient, url: str) -> bool:
    """Whether the gateway listens."""
    try:
        return (await client.get(f"{url}/health")).status_code == 200
    except httpx2.TransportError:
        return False


class TestKey:
    async def test_work_is_taken_from_holders_only(self) -> None:
        """Without the key, or with another, a chat and an abort are a 401; what only describes the worker is open."""
        async with (
            serving(create_engine("scripted", "fake", {}), internal_key="k", require_key=True) as worker,
            httpx2.AsyncClient(base_url=worker.url) as client,
        ):
            body = chat("fake", "[[text:fine]]")
            refused = [
                await client.post(path, json=body, headers=headers)
                for path in ("/v1/chat/completions", "/_packrelay/abort")
                for headers in ({}, {"x-packrelay-auth": worker_signature("another")})
            ]
            taken = await client.post(
                "/v1/chat/completions", json=body, headers={"x-packrelay-auth": worker_signature("k")}
            )
            described = [(await client.get(path)).status_code for path in ("/health", "/v1/models", "/server_info")]

        assert [reply.status_code for reply in refused] == [401] * 4
        assert all(reply.json()["error"]["code"] == "invalid_key" for reply in refused)
        assert (taken.status_code, described) == (200, [200] * 3)

    async def test_the_gateway_shows_it(self, tmp_path: Path, link: str) -> None:
        """A fleet whose workers ask for the key is served by a gateway that has it, over either link."""
        async with running(tmp_path / "log", link=link, worker_flags=("--require-key",)) as fleet:
            got = await post(fleet.gateway.url, chat("scripted", "[[text:fine]]"))

        assert got is not None
        assert got.status == 200
