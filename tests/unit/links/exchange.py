"""The replies of a scripted worker, and short ways to ask for one."""

from collections.abc import Awaitable, Callable

from gateway.links.base import Deadlines, LinkError, Reply
from gateway.links.http import HttpLink, HttpReplyStream
from tests.unit.links.raw_server import RawServer, Script, chunked

PATIENT = Deadlines(connect=5, first_byte=10, idle=10, total=20)

HELLO = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello"
HELLO_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"he", b"llo")
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices":[{"delta":{"role":"assistant"}}]} \n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
METRICS = b'event: trtllm.perf_metrics\ndata: {"Server-Timing":"x;dur=1"}\n\n'
STOCK_ERROR = b'data: {"error":{"message":"Out of memory.","type":"server_error","code":null,"param":null}}\n\n'
STREAM = SSE_HEAD + chunked(ROLE, TOKEN, TOKEN + DONE)

Serve = Callable[[Script], Awaitable[RawServer]]
Connect = Callable[..., HttpLink]
Drain = Callable[[HttpReplyStream], Awaitable[tuple[bytes, LinkError | None]]]


async def ask(link: HttpLink, deadlines: Deadlines = PATIENT) -> Reply:
    """One small call."""
    return await link.call("/v1/chat/completions", b"\x80", {}, deadlines)


async def open_stream(link: HttpLink, deadlines: Deadlines = PATIENT) -> HttpReplyStream:
    """One small stream."""
    return await link.stream("/v1/chat/completions", b"\x80", {}, deadlines)


async def read_until_failure(stream: HttpReplyStream) -> tuple[bytes, LinkError | None]:
    """What a stream gives, and what it fails with if it fails."""
    seen = bytearray()
    try:
        while piece := await stream.read():
            seen += piece
    except LinkError as error:
        return bytes(seen), error
    finally:
        stream.close()
    return bytes(seen), None


async def pass_on_until_failure(stream: HttpReplyStream) -> tuple[bytes, LinkError | None]:
    """The same for a stream whose events are passed on as they come."""
    seen = bytearray()

    def take(events: bytes) -> bool:
        seen.extend(events)
        return True

    try:
        while piece := await stream.read():
            seen += piece
            await stream.pass_on(take)
    except LinkError as error:
        return bytes(seen), error
    finally:
        stream.close()
    return bytes(seen), None
