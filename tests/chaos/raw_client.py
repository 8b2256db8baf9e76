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


async def post(
    url: str, body: dict[str, Any], leave_after: float | None = None, begun: asyncio.Event | None = None
) -> Got | None:
    """POST a chat request; None if the client left before the answer was complete. `begun` is set at a stream's first event."""
    try:
        async with asyncio.timeout(leave_after):
            return await _exchange(url, body, begun or asyncio.Event())
    except TimeoutError:
        return None


async def _exchange(url: str, body: dict[str, Any], begun: asyncio.Event) -> Got:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        payload = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(payload)}\r\n\r\n"
        writer.write(head.encode() + payload)
        raw = b""
        while chunk := await reader.read(65536):
            raw += chunk
            if b"data: " in raw:
                begun.set()
        return _parsed(raw)
    finally:
        writer.transport.abort()


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
