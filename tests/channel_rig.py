"""A real channel on a real socket: a worker's service behind it, and links to it that are closed after the test."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gateway.links.base import Deadlines, ReplyStream
from gateway.links.grpc import GrpcLink
from schemas.codec import encode_frame
from tests.worker_rig import make_service
from worker.channel import ChannelServer, Tls
from worker.channel_answer import Answering
from worker.engines.base import Engine
from worker.operations import Front, Operations
from worker.service import Service

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PATIENT = Deadlines(connect=5, first_byte=10, idle=10, total=20)


class ChannelWorker:
    """A running channel: its service, where it is, and its server."""

    def __init__(self, service: Service, server: ChannelServer) -> None:
        self.service = service
        self.server = server
        self.port = server.port
        self.url = f"grpc://127.0.0.1:{server.port}"


@asynccontextmanager
async def channel_worker(
    engine: Engine,
    *,
    port: int = 0,
    key: str | None = None,
    tls: Tls | None = None,
    max_requests: int = 256,
    max_body_bytes: int = 1 << 20,
    max_reply_bytes: int = 1 << 20,
) -> AsyncIterator[ChannelWorker]:
    """Serve an engine's model over a channel on 127.0.0.1, with limits of 1 MiB."""
    service = make_service(engine, await engine.start(), max_requests=max_requests)
    server = ChannelServer("127.0.0.1", port, tls=tls, max_body_bytes=max_body_bytes, max_reply_bytes=max_reply_bytes)
    front = Front(grpc_port=server.port, internal_key=key, max_body_bytes=max_body_bytes)
    await server.start(Answering(Operations(service, front), max_reply_bytes))
    try:
        yield ChannelWorker(service, server)
    finally:
        await server.stop()


def chat_frame(content: str = "hi", **fields: Any) -> bytes:
    """A chat request as a frame. Any: fields of every type."""
    return encode_frame({"model": "fake", "messages": [{"role": "user", "content": content}]} | fields)


async def open_stream(
    link: GrpcLink, headers: Mapping[str, str] | None = None, deadlines: Deadlines = PATIENT, **fields: Any
) -> ReplyStream:
    """A chat stream that the worker has begun to answer, or refused. Any: fields of every type."""
    return await link.stream(CHAT, chat_frame(stream=True, **fields), headers or {}, deadlines)


async def read_to_end(stream: ReplyStream) -> bytes:
    """Everything a stream says."""
    pieces: list[bytes] = []
    while piece := await stream.read():
        pieces.append(piece)
    return b"".join(pieces)
