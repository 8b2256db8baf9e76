"""What nobody should send, at a worker's own port: each ends its own connection, with an error object, and nothing else."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx2
import msgspec
import pytest

from tests.worker_rig import Worker, serving
from worker import msgpack_route
from worker.engines import create_engine
from worker.protocol import WorkerProtocol

HELLO = {"model": "fake", "messages": [{"role": "user", "content": "hello"}]}
CHAT = "/v1/chat/completions"


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    """A worker with the scripted engine."""
    async with serving(create_engine("scripted", "fake", {})) as running:
        yield running


async def sent(worker: Worker, data: bytes) -> bytes:
    """What comes back for these bytes until the worker ends the connection."""
    reader, writer = await asyncio.open_connection(worker.host, worker.port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


async def assert_serves(worker: Worker) -> None:
    """The next request is answered."""
    async with httpx2.AsyncClient() as client:
        assert (await client.post(worker.url + CHAT, json=HELLO)).status_code == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * (70 << 10), 431),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * (70 << 10) + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * (70 << 10), 431),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400),
    ],
    ids=["endless header", "long header", "endless path", "TLS", "two lengths"],
)
async def test_a_head_that_is_none_gets_the_error_object(worker: Worker, data: bytes, status: int) -> None:
    """However it is wrong, the answer is JSON, tells nothing internal, and the worker goes on."""
    reply = await sent(worker, data)

    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert b'{"error":{"message":' in reply
    assert b"Traceback" not in reply
    await assert_serves(worker)


@pytest.mark.parametrize(
    "fields", [b"X-Long: " + b"a" * (70 << 10) + b"\r\n", b"X: abc\r\n" * 9_000], ids=["one", "many"]
)
@pytest.mark.parametrize("cut", [10, 60 << 10])
async def test_a_long_head_is_as_long_in_two_pieces(worker: Worker, fields: bytes, cut: int) -> None:
    """Wherever the network cuts it, and whether it is one long field or many short ones."""
    head = b"GET /health HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n"
    reader, writer = await asyncio.open_connection(worker.host, worker.port)
    writer.write(head[:cut])
    await assert_serves(worker)  # By when the piece was read.
    writer.write(head[cut:])
    reply = await asyncio.wait_for(reader.read(), 10)
    writer.close()

    assert reply.startswith(b"HTTP/1.1 431 ")


async def test_a_head_behind_a_large_body_is_not_as_large(worker: Worker) -> None:
    """A body and the beginning of the next head may come in the same packet."""
    body = msgspec.json.encode({**HELLO, "user": "u" * (100 << 10)})
    ask = b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    health = b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection(worker.host, worker.port)
    writer.write(ask % (CHAT.encode(), len(body)) + body + health[:10])
    await reader.readuntil(b'"usage"')
    writer.write(health[10:])
    answers = await asyncio.wait_for(reader.read(), 10)
    writer.close()

    assert b"HTTP/1.1 200 " in answers


async def test_trailers_without_end_end_the_connection(worker: Worker) -> None:
    """What stands beside a body is bounded too, and not kept; the request it belongs to gets no answer."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    with suppress(ConnectionResetError):  # The worker ends it while more is on its way.
        assert await sent(worker, head + b"X-Trailer: value\r\n" * 40_000) == b""
    await assert_serves(worker)


async def test_a_head_that_does_not_come_is_not_waited_for(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slowloris is told so and gone when its time is over."""
    monkeypatch.setattr(WorkerProtocol, "head_seconds", 0.1)

    assert (await sent(worker, b"GET /health HTTP/1.1\r\nX")).startswith(b"HTTP/1.1 408 ")
    assert (await sent(worker, b"")).startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_does_not_come_is_not_waited_for(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one that sends its body byte by byte."""
    monkeypatch.setattr(msgpack_route, "BODY_SECONDS", 0.1)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{"

    assert (await sent(worker, head)).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    "body",
    [
        b"\x91" * 200_000,
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xffabc",
        b"\x81\xa5model\xc7\x04\x05abcd",
        b"\x81\xa5model\xd6\xff\x00\x00\x00\x00",
        msgspec.msgpack.encode(HELLO)[:-3],
        msgspec.msgpack.encode(HELLO) + b"\xc0",
    ],
    ids=["nesting", "huge map", "huge array", "huge text", "ext", "timestamp", "truncated", "trailing"],
)
async def test_a_frame_that_is_none_ends_one_request(worker: Worker, body: bytes) -> None:
    """Each is a 400 with the error object, at once, and costs nobody else anything."""
    async with httpx2.AsyncClient() as client:
        reply = await client.post(worker.url + CHAT, content=body, headers={"X-TRTLLM-Msgpack": "1"})

    assert reply.status_code == 400
    assert set(reply.json()) == {"error"}
    await assert_serves(worker)


@pytest.mark.parametrize("value", ["a" * 60_000, "a b", "../../x", "é"])
async def test_a_request_id_that_is_none_is_replaced(worker: Worker, value: str) -> None:
    """It is in no reply: the worker makes one of its own."""
    async with httpx2.AsyncClient() as client:
        headers = {b"X-Packrelay-Request-Id": value.encode()}
        reply = await client.post(worker.url + CHAT, json=HELLO, headers=headers)

    assert reply.status_code == 200
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{32}", reply.json()["id"])
