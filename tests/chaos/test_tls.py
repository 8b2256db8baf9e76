"""Channels with certificates, by the flags that an operator gives to real processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.chaos.processes import Process, free_port
from tests.chaos.raw_client import chat, post

CERTIFICATE = Path(__file__).parents[1] / "unit" / "links" / "tls" / "localhost.crt"
PAIR = (str(CERTIFICATE), str(CERTIFICATE.with_suffix(".key")))
WORKER_TLS = ("--grpc-tls-cert", PAIR[0], "--grpc-tls-key", PAIR[1])
WORKER_MUTUAL = (*WORKER_TLS, "--grpc-tls-ca", PAIR[0])
GATEWAY_TLS = ("--link-tls-ca", PAIR[0])
GATEWAY_MUTUAL = (*GATEWAY_TLS, "--link-tls-cert", PAIR[0], "--link-tls-key", PAIR[1])
IN_TIME = 10.0


@asynccontextmanager
async def behind_gateway(
    log: Path, worker_flags: tuple[str, ...], gateway_flags: tuple[str, ...]
) -> AsyncIterator[Process]:
    """A gateway that is told of one worker, whose channel has a certificate."""
    port = free_port()
    worker = Process("worker", log, "--engine", "scripted", "--grpc-port", str(port), *worker_flags)
    gateway = Process("gateway", log, "--worker", f"grpc://localhost:{port}", *gateway_flags)
    try:
        await worker.start()
        gateway.spawn()
        yield gateway
    finally:
        gateway.end()
        worker.end()


@pytest.mark.parametrize(
    ("worker_flags", "gateway_flags"),
    [(WORKER_TLS, GATEWAY_TLS), (WORKER_MUTUAL, GATEWAY_MUTUAL)],
    ids=["tls", "mutual"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_over_an_encrypted_channel(
    tmp_path: Path, worker_flags: tuple[str, ...], gateway_flags: tuple[str, ...], stream: bool
) -> None:
    """With the certificates that are asked for, a request is answered."""
    async with behind_gateway(tmp_path / "log", worker_flags, gateway_flags) as gateway:
        await gateway.until_healthy()
        got = await post(gateway.url, chat("scripted", "hello", stream=stream))

    assert got is not None
    assert (got.status, got.terminals, got.failed) == (200, int(stream), False)


@pytest.mark.parametrize(
    ("worker_flags", "gateway_flags"),
    [(WORKER_MUTUAL, GATEWAY_TLS), (WORKER_TLS, ()), ((), GATEWAY_TLS)],
    ids=["no certificate shown", "plain gateway", "plain worker"],
)
async def test_a_channel_that_is_not_agreed_on_is_never_used(
    tmp_path: Path, worker_flags: tuple[str, ...], gateway_flags: tuple[str, ...]
) -> None:
    """The gateway runs, and has no worker: nothing is sent in the clear instead."""
    async with behind_gateway(tmp_path / "log", worker_flags, gateway_flags) as gateway:
        async with asyncio.timeout(IN_TIME):
            while not (got := await answered(gateway)):
                pass

    assert got == 503


async def answered(gateway: Process) -> int:
    """The status of a chat, 0 while the gateway does not listen yet."""
    try:
        got = await post(gateway.url, chat("scripted", "hello"))
    except OSError:
        return 0
    return got.status if got else 0
