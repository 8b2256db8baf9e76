"""A client of a few lines over a bare socket: it can leave whenever it likes, and sees every byte."""

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit


class Got:
    """What came back: the status (0 if the head never came) and the body without its chunk framing."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body

    @property
    def terminals(self) -> int:
        """How many ends a stream has: `[DONE]` or an error record."""
        return self.body.count(b"data: [DONE]") + self.body.count(b'data: {"error":')

    @property
    def failed(self) -> bool:
        """Whether the client was told of an error."""
        return b'"error":' in self.body

    @property
    def streamed(self) -> bool:
        """Whether it is a stream, complete or cut."""
        return self.status == 200 and b"data: " in self.body

    @property
    def text(self) -> str:
        """What the first choice says, of a stream or of a whole answer; of an error nothing."""
        if not self.streamed:
            choices = json.loads(self.body).get("choices", ())
            return "".join(choice["message"]["content"] or "" for choice in choices[:1])
        records = [json.loads(line[6:]) for line in self.body.splitlines() if line.startswith(b"data: {")]
        deltas = [choice["delta"] for record in records for choice in record.get("choices", ())]
        return "".join(delta.get("content") or "" for delta in deltas)


async def post(
    url: str, body: dict[str, Any], leave_after: float | None = None, begun: asyncio.Event | None = None
) -> Got | None:
    """POST a chat request; None if the client left before the answer was complete. `begun` is set at a stream's first event."""
    try:
        async with asyncio.timeout(leave_after):
            return await _exchange(url, body, begun or asyncio.Event())
    except TimeoutError:
        return None


def request_of(body: dict[str, Any], *fields: str) -> bytes:
    """A chat request as it is sent, with these header fields."""
    payload = json.dumps(body).encode()
    head = ["POST /v1/chat/completions HTTP/1.1", "Host: x", *fields, f"Content-Length: {len(payload)}", "", ""]
    return "\r\n".join(head).encode() + payload


async def _exchange(url: str, body: dict[str, Any], begun: asyncio.Event) -> Got:
    parts = urlsplit(url)
    answer = _Answer(request_of(body, "Connection: close"), begun)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: answer, parts.hostname or "", parts.port or 80)
    try:
        return _parsed(await answer.complete)
    finally:
        transport.abort()


class Asker(asyncio.Protocol):
    """A connection that asks once, and keeps what comes; how it leaves is for those who derive from it."""

    def __init__(self, request: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._request = request
        self._answer = bytearray()

    @property
    def complete(self) -> bool:
        """Whether all of the answer came."""
        return self._answer.endswith((b"\r\n0\r\n\r\n", b"}"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._answer += data


class _Answer(asyncio.Protocol):
    """Asks, and keeps every byte that comes. `complete` is all of them once the connection has ended, however it did that.

    A reset is an error only where nothing came before it: asyncio's own streams would lose what did.
    """

    def __init__(self, request: bytes, begun: asyncio.Event) -> None:
        self.complete: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._request = request
        self._begun = begun
        self._raw = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._raw += data
        if not self._begun.is_set() and b"data: " in self._raw:
            self._begun.set()

    def connection_lost(self, error: Exception | None) -> None:
        if self.complete.done():
            return
        if error is not None and not self._raw:
            self.complete.set_exception(error)
        else:
            self.complete.set_result(bytes(self._raw))


def _parsed(raw: bytes) -> Got:
    head, _, body = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        body = _unchunked(body)
    return Got(int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/") else 0, body)


def _unchunked(body: bytes) -> bytes:
    parts = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        parts.append(rest[:length])
        body = rest[length + 2 :]
    return b"".join(parts)


def chat(model: str, script: str, **fields: Any) -> dict[str, Any]:
    """A chat request whose prompt is a script for the scripted engine."""
    return {"model": model, "messages": [{"role": "user", "content": script}]} | fields
