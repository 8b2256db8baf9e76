"""More than there is room for: large bodies, slow readers, too few file descriptors, connections that end while they are reused."""

import asyncio
import contextlib
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.room import room_in
from tests.chaos.processes import Process, running
from tests.chaos.raw_client import Got, chat, post, request_of

MEBIBYTE = 1 << 20
SLACK = 10
"""How much longer than meant something may take on a busy machine."""
SETTLE_SECONDS = 20.0
PIECE_BYTES = 256 << 10
PIECE_SECONDS = 0.01
TOKENS = 10_000
LONG_NAME = "m" * 2048
"""A model's name is in every event: so ten thousand tokens are twenty megabytes, and a hundred such streams fit nowhere."""
FEW = 4
"""Descriptors that come and go by themselves: of health checks."""


async def health(process: Process, path: str = "/health/ready") -> tuple[bytes, float]:
    """The status line of a health check on a connection of its own, and the seconds it took."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    return line, time.monotonic() - began


@pytest.mark.slow
async def test_health_is_answered_while_large_bodies_saturate_the_loop(tmp_path: Path, link: str) -> None:
    """Sixteen clients send 1 MB each, again and again; a readiness check takes no longer than a few of them (0.1 s, with slack)."""
    async with running(tmp_path / "log", link=link) as fleet:
        over = asyncio.Event()
        body = chat("scripted", "[[text:fine]]" + "x" * MEBIBYTE)

        async def client() -> None:
            while not over.is_set():
                await post(fleet.gateway.url, body)

        load = asyncio.gather(*(client() for _ in range(16)))
        checks = [await health(fleet.gateway) for _ in range(40)]
        over.set()
        await load

    assert {line for line, _ in checks} == {b"HTTP/1.1 200 OK\r\n"}
    assert max(seconds for _, seconds in checks) < SLACK * 0.1


async def send_slowly(port: int, request: bytes) -> Got:
    """Send a request in pieces, as a network brings it, and read the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for start in range(0, len(request), PIECE_BYTES):
        writer.write(request[start : start + PIECE_BYTES])
        await writer.drain()
        await asyncio.sleep(PIECE_SECONDS)  # So that it arrives over a second.
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return Got(int(head.split(b" ", 2)[1]), body)


async def test_health_is_answered_while_27_megabytes_arrive_and_are_served(tmp_path: Path, link: str) -> None:
    """Gateway and workers answer every health check meanwhile, in a tenth of a second (with slack): nobody walks the body."""
    async with running(tmp_path / "log", link=link) as fleet:
        body = chat("scripted", "[[text:fine]]")
        # A key that nobody reads, so that the prompt fits into the context.
        body["messages"][0]["attachment"] = "x" * 27_000_000
        request = request_of(body, "Connection: close")
        asking = asyncio.create_task(send_slowly(fleet.gateway.port, request))
        checks = []
        while not asking.done():
            checks += [await health(process, "/health") for process in fleet.all]
            await asyncio.sleep(0)  # The sender has its turn.
        answer = await asking

    assert answer.text == "fine"
    assert len(checks) > 10
    assert {line for line, _ in checks} == {b"HTTP/1.1 200 OK\r\n"}
    assert max(seconds for _, seconds in checks) < SLACK * 0.1


@contextlib.asynccontextmanager
async def slow_reader(port: int, script: str) -> AsyncIterator[socket.socket]:
    """A stream whose client has the smallest buffer there is, and reads when it is told to."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, request_of(chat(LONG_NAME, script, stream=True, max_tokens=TOKENS)))
        yield client
    finally:
        client.close()


async def read_slowly(port: int, seconds: int) -> int:
    """Read a byte a second of ten thousand tokens, for so many seconds; how many came."""
    loop = asyncio.get_running_loop()
    async with slow_reader(port, f"[[tokens:{TOKENS}]] [[itl_ms:4]]") as client:
        count = 0
        for _ in range(seconds):
            count += len(await loop.sock_recv(client, 1))
            await asyncio.sleep(1)  # That is how slow it is.
        return count


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_slow_readers_cost_little_and_slow_nobody_down(tmp_path: Path, link: str) -> None:
    """A hundred clients that read a byte a second: the gateway grows by less than 64 MB, and others are answered meanwhile.

    Without back-pressure it grows by hundreds: a gateway that did not wait for its clients would have all that the workers say.
    """
    flags = ("--served-model-name", LONG_NAME, "--context-length", str(2 * TOKENS))
    async with running(tmp_path / "log", link=link, worker_flags=flags) as fleet:
        for _ in range(20):
            await post(fleet.gateway.url, chat(LONG_NAME, "[[text:warm]]"))
        before = fleet.gateway.resident_bytes
        readers = asyncio.gather(*(read_slowly(fleet.gateway.port, 8) for _ in range(100)))
        grown, slowest = 0, 0.0
        while not readers.done():
            began = time.monotonic()
            got = await post(fleet.gateway.url, chat(LONG_NAME, "[[text:fine]]"))
            slowest = max(slowest, time.monotonic() - began)
            grown = max(grown, fleet.gateway.resident_bytes - before)
            assert got is not None
            assert got.status == 200
            await asyncio.sleep(0.1)  # Ten a second, so that it is the readers that are measured.
        counts = await readers

    assert min(counts) > 0
    assert grown < 64 * MEBIBYTE
    assert slowest < SLACK * 0.5


async def test_requests_paced_at_the_idle_timeout_of_the_workers_all_succeed(tmp_path: Path) -> None:
    """Fifty connections, ten requests each, sent at the moment the worker gives an idle connection up: no request notices."""
    flags = ("--keep-alive-timeout", "0.2")
    async with running(tmp_path / "log", worker_flags=flags) as fleet:

        async def client() -> list[Got | None]:
            answers = []
            for _ in range(10):
                answers.append(await post(fleet.gateway.url, chat("scripted", "[[text:fine]]")))
                await asyncio.sleep(0.2)  # The moment that is tested.
            return answers

        answers = [got for each in await asyncio.gather(*(client() for _ in range(50))) for got in each]

    assert Counter(got.status if got else None for got in answers) == {200: 500}


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_too_few_descriptors_are_told_and_got_over(tmp_path: Path, link: str) -> None:
    """500 streams and 256 file descriptors: each is served whole or told 503, and then all is as before.

    All 500 are answered, but the connections that are told without being read are then reset, because the kernel does that to a
    connection that is closed with bytes unread. The answer is there before the reset; a client that gives up what it has read
    when it meets one does not see it. Only a gateway that reads on for a while after it has answered could spare it that.
    """
    async with running(tmp_path / "log", link=link, gateway_descriptors=256) as fleet:
        before = fleet.gateway.descriptors
        body = chat("scripted", "[[itl_ms:10]] [[tokens:50]]", stream=True, max_tokens=50)
        answers = await asyncio.gather(*(post(fleet.gateway.url, body) for _ in range(500)))
        later = await post(fleet.gateway.url, chat("scripted", "[[text:fine]]"))
        async with asyncio.timeout(SETTLE_SECONDS):
            while fleet.gateway.descriptors > before + FEW:  # noqa: ASYNC110 - it happens in another process
                await asyncio.sleep(0.05)  # Idle connections to the workers are closed after some seconds.

    statuses = Counter(got.status for got in answers if got)
    assert set(statuses) == {200, 503}
    assert statuses.total() == 500
    assert all(got.terminals == 1 and not got.failed for got in answers if got and got.status == 200)
    assert all(b'"code":"no_connections"' in got.body for got in answers if got and got.status == 503)
    assert later is not None
    assert later.status == 200


def asked(port: int) -> socket.socket:
    """A client whose whole request is with the kernel."""
    client = socket.create_connection(("127.0.0.1", port), timeout=SETTLE_SECONDS)
    client.sendall(request_of(chat("scripted", "[[text:fine]]")))
    return client


def told(client: socket.socket) -> bytes:
    """Everything that comes before the connection ends, or is reset."""
    answer = b""
    with client, contextlib.suppress(ConnectionResetError):
        while data := client.recv(65536):
            answer += data
    return answer


async def test_a_refusal_is_there_before_the_reset(tmp_path: Path) -> None:
    """Idle connections have taken all descriptors: whoever comes then reads the 503, though nobody reads what it asks."""
    async with running(tmp_path / "log", gateway_descriptors=256) as fleet:
        before, room = fleet.gateway.descriptors, room_in(256)
        idle = [socket.create_connection(("127.0.0.1", fleet.gateway.port)) for _ in range(room.served + room.refused)]
        async with asyncio.timeout(SETTLE_SECONDS):
            while fleet.gateway.descriptors < before + len(idle) - FEW:  # noqa: ASYNC110 - it happens in another process
                await asyncio.sleep(0.01)  # It takes them one by one.
        # Frozen, so that the requests are there, unread, when it takes the connections.
        fleet.gateway.send(signal.SIGSTOP)
        clients = [asked(fleet.gateway.port) for _ in range(20)]
        fleet.gateway.send(signal.SIGCONT)
        answers = [await asyncio.to_thread(told, client) for client in clients]
        for connection in idle:
            connection.close()

    assert all(b'"code":"no_connections"' in answer for answer in answers)
