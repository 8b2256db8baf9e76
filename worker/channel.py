"""The worker's gRPC channel: the servicer, its server, health and reflection. The only module of the worker that names gRPC."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio
import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from msgspec import Struct

from schemas.codec import MAX_BODY_BYTES, MAX_REPLY_BYTES
from schemas.events import Event
from schemas.pb import channel_pb2
from schemas.pb.channel_pb2 import OPEN, Frame
from schemas.pb.channel_pb2_grpc import ChannelServicer, add_ChannelServicer_to_server
from worker.channel_answer import Answering
from worker.channel_outbox import event_frames
from worker.channel_requests import CLEAN_UP_SECONDS, ChannelRequests, ProtocolBroken

SERVICE: Final = channel_pb2.DESCRIPTOR.services_by_name["Channel"].full_name
ENVELOPE_BYTES: Final = 64 << 10
"""What a message may be larger than its payload: operation, headers."""
FLUSH_SECONDS: Final = 1.0
"""How long what was said last may take to be written when the channel ends."""

Context = grpc.aio.ServicerContext[Frame, Frame]


class Tls(Struct, frozen=True, kw_only=True):
    """PEM files. With `ca`, clients must show a certificate signed by it (mutual TLS)."""

    certificate: Path
    key: Path
    ca: Path | None = None


def server_options(max_body_bytes: int, max_reply_bytes: int) -> list[tuple[str, int]]:
    """Settings of gRPC for the channel's server; the other side is `gateway.links.grpc.channel_options`."""
    return [
        ("grpc.max_receive_message_length", max_body_bytes + ENVELOPE_BYTES),
        ("grpc.max_send_message_length", max_reply_bytes + ENVELOPE_BYTES),
        # A gateway pings while a long prompt is being read and nothing is said: that is never a reason to end its channel.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        # Ours find a gateway that has vanished.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_frame_size", 1 << 20),
        ("grpc.http2.lookahead_bytes", 4 << 20),
        ("grpc.so_reuseport", 0),
    ]


class Servicer(ChannelServicer):
    """The three rpcs over one service."""

    def __init__(self, answering: Answering, max_message_bytes: int = MAX_REPLY_BYTES) -> None:
        self._answering = answering
        self._max_message_bytes = max_message_bytes
        self._exchanges: set[ChannelRequests] = set()
        self._draining = False
        self._closing = asyncio.Event()

    def drain(self) -> None:
        """Tell every client that this worker will end."""
        self._draining = True
        for exchange in self._exchanges:
            exchange.go_away()

    def close(self) -> None:
        """End the exchanges, once what they have to say is written."""
        self._closing.set()

    async def Call(self, request: Frame, context: Context) -> Frame:  # noqa: N802 - the proto's name
        """See `proto/channel.proto`."""
        await _check_open(request, context)
        sink = _CallSink()
        await self._answering.answer(request, sink, events=False)
        return sink.frame

    # Both write by themselves where the stub has a generator: grpc would leave a cancelled one to the garbage collector.

    async def Generate(self, request: Frame, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """See `proto/channel.proto`."""
        await _check_open(request, context)
        await self._answering.answer(request, _GenerateSink(context, self._max_message_bytes))

    async def Exchange(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[Frame], context: Context
    ) -> None:
        """See `proto/channel.proto`."""
        await context.send_initial_metadata(())
        requests = ChannelRequests(self._answering, self._max_message_bytes)
        self._exchanges.add(requests)
        if self._draining:
            requests.go_away()
        try:
            await self._serve(requests, request_iterator, context)
        except (ProtocolBroken, DecodeError) as error:
            details = str(error) if isinstance(error, ProtocolBroken) else "A message is not a frame."
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, details)
        finally:
            self._exchanges.discard(requests)
            with anyio.CancelScope(shield=True):
                await requests.close()

    async def _serve(self, requests: ChannelRequests, frames: AsyncIterator[Frame], context: Context) -> None:
        """Until the client has ended its side and is answered, or this worker ends."""
        reading = asyncio.create_task(_read(requests, frames), name="channel-reader")
        writing = asyncio.create_task(requests.outbox.write_all(context.write), name="channel-writer")
        closing = asyncio.create_task(self._closing.wait(), name="channel-closing")
        tasks = {reading, writing, closing}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            with anyio.move_on_after(FLUSH_SECONDS):
                await requests.outbox.flushed()
        finally:
            for task in tasks:
                task.cancel()
            with anyio.move_on_after(CLEAN_UP_SECONDS, shield=True):
                await asyncio.gather(*tasks, return_exceptions=True)


async def _read(requests: ChannelRequests, frames: AsyncIterator[Frame]) -> None:
    async for frame in frames:
        requests.take(frame)
    await requests.idle()


async def _check_open(frame: Frame, context: Context) -> None:
    if frame.kind != OPEN:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The request must be an OPEN frame.")


class _CallSink:
    """Keeps the reply."""

    def __init__(self) -> None:
        self.frame = Frame()

    async def events(self, _events: list[Event]) -> None:
        raise RuntimeError("A call was answered with events.")

    async def reply(self, reply: Frame) -> None:
        self.frame = reply


class _GenerateSink:
    """Writes at once: the engine merges while the client is behind."""

    def __init__(self, context: Context, max_message_bytes: int) -> None:
        self._context = context
        self._max_message_bytes = max_message_bytes

    async def events(self, events: list[Event]) -> None:
        for frame in event_frames([(0, event) for event in events], self._max_message_bytes):
            await self._context.write(frame)

    async def reply(self, reply: Frame) -> None:
        await self._context.write(reply)


class ChannelServer:
    """The server of the channel. Its port is taken when it is made, and answers after `start`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: Tls | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        """Raises OSError when the port cannot be had or a PEM file cannot be read."""
        self._max_reply_bytes = max_reply_bytes
        self._server = grpc.aio.server(options=server_options(max_body_bytes, max_reply_bytes))
        self._servicer: Servicer | None = None
        self._health = health.aio.HealthServicer()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, _credentials(tls))
        except RuntimeError as error:
            raise OSError(f"the channel cannot listen on {address}") from error

    async def start(self, answering: Answering) -> None:
        """Serve, and say so to health checks."""
        self._servicer = Servicer(answering, self._max_reply_bytes)
        add_ChannelServicer_to_server(self._servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        await self._server.start()
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def drain(self) -> None:
        """Say that this worker will end. Requests go on; the service refuses new ones."""
        await self._health.enter_graceful_shutdown()
        if self._servicer is not None:
            self._servicer.drain()

    async def stop(self) -> None:
        """End everything: what was said is still written. A second call does nothing."""
        if self._servicer is not None:
            self._servicer.close()
        await self._server.stop(FLUSH_SECONDS)


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    ca = None if tls.ca is None else tls.ca.read_bytes()
    return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)
