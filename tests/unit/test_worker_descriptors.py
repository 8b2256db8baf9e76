"""How many connections a worker takes, by the file descriptors it has, and what it does with the others."""

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from select import select
from socket import create_connection, socket

import pytest
from msgspec.json import decode

from tests.listening import Listening
from worker.descriptors import OWN_DESCRIPTORS, raise_limit, room_in
from worker.protocol import WorkerProtocol

DESCRIPTORS = 64
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 1 << 20])
def test_all_connections_fit_into_the_descriptors(descriptors: int) -> None:
    """Those that are served with a hand-off each, those that are refused, and a queue full of them that all come at once."""
    room = room_in(descriptors)

    assert 2 * room.served + 2 * room.refused + OWN_DESCRIPTORS <= descriptors
    assert room.served >= descriptors // 8


def test_even_the_smallest_worker_serves_somebody() -> None:
    """Whatever the system allows."""
    room = room_in(16)

    assert room.served >= 1
    assert room.refused >= 1


def test_a_worker_takes_what_the_system_allows() -> None:
    """The low limit of a login is not the worker's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft // 2, 256), hard))
    try:
        raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class SmallProtocol(WorkerProtocol):
    """Room for two connections, and for telling one more."""

    max_connections = 2
    most_connections = 3


async def nothing(_scope: object, _receive: object, send: object) -> None:
    """Answers everything with 200."""
    assert callable(send)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The head of the answer to a request."""
    writer.write(GET)
    return await reader.readuntil(b"\r\n\r\n")


async def test_a_connection_too_many_is_told_so() -> None:
    """Its first request gets the error object, one beyond that is told unasked, and those that were there are served on."""
    async with asyncio.timeout(10), Listening(nothing, http=SmallProtocol, lifespan="off") as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        kept = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        first = [await asked(*connection) for connection in kept]
        crowded, beyond = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        unasked = await beyond[0].read()
        refused = await asked(*crowded) + await crowded[0].read()
        again = [await asked(*connection) for connection in kept]
        for _, writer in (*kept, crowded, beyond):
            writer.close()

    assert all(head.startswith(b"HTTP/1.1 200 ") for head in (*first, *again))
    for told in (unasked, refused):
        head, _, body = told.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in head
        assert decode(body)["error"]["code"] == "no_connections"


@contextmanager
def small_worker() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A worker process that may have so few descriptors, and its port."""
    command = [sys.executable, "-P", "-m", "worker.entry", "--engine", "scripted", "--port", "0"]
    few = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS})); "
    with subprocess.Popen(
        [sys.executable, "-c", few + "os.execv(sys.argv[1], sys.argv[1:])", *command], stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        try:
            lines = (decode(line) for line in process.stderr)
            yield process, next(line["port"] for line in lines if line["event"] == "worker.listening")
        finally:
            process.terminate()
            process.stderr.read()  # What it says last must find a reader.


def connecting(port: int) -> socket:
    """A connection that the worker may take or not."""
    connection = socket()
    connection.setblocking(False)
    connection.connect_ex(("127.0.0.1", port))
    return connection


def health(connection: HTTPConnection) -> int:
    """The status of the health check."""
    connection.request("GET", "/health")
    reply = connection.getresponse()
    reply.read()
    return reply.status


def processor_seconds(process: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_worker_without_descriptors_neither_dies_nor_spins() -> None:
    """Far more connections than descriptors: who is connected is served, it idles, and afterwards all is as before.

    Some come one after the other, and are told; of the burst behind them the kernel keeps what the worker's queue holds, and says
    nothing to the others.
    """
    with small_worker() as (process, port), closing(HTTPConnection("127.0.0.1", port, timeout=10)) as kept:
        before = health(kept)
        with ExitStack() as stack:
            others = [stack.enter_context(create_connection(("127.0.0.1", port), 10)) for _ in range(24)]
            for _ in range(200):
                stack.enter_context(connecting(port))
            meanwhile = health(kept)
            readable, _, _ = select(others, [], [], 10)
            told = {other.recv(13) for other in readable}
            used = processor_seconds(process.pid)
            time.sleep(0.3)  # In which it has nothing to do.
            used = processor_seconds(process.pid) - used
        after = health(kept)

    assert (before, meanwhile, after) == (200, 200, 200)
    assert told == {b"HTTP/1.1 503 "}
    assert used < 0.15
    assert process.returncode == 0
