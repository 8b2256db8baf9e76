"""The link over gRPC: one `Exchange` rpc per worker and process carries every request. The only module of the gateway that
names gRPC.

It is also a client for programs that are not the gateway:

    async with GrpcLink("grpc://127.0.0.1:9001") as link:
        frame = encode_frame(ChatCompletionRequest(model="m", messages=[…], stream=True))
        async with await link.events("/v1/chat/completions", frame) as events:
            async for event in events:
                …                             # Started, Delta…, then Done or Failed; leaving the block cancels

gRPC's own failures become the four of `base.LinkError`; `FAILURES` is the table, complete by test.
"""

import asyncio
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import grpc
import grpc.aio
from msgspec import Struct

from gateway.links.base import (
    BadReply,
    ConnectFailed,
    Deadlines,
    LinkError,
    Reply,
    ReplyStream,
    WorkerLost,
    WorkerSilent,
)
from gateway.links.channel_reply import RecordStream, WholeReplyStream, as_json, chunks_for, refusal
from gateway.links.dialler import Dialler, Pauses
from gateway.links.errors import lift_error
from gateway.links.event_stream import EventStream
from gateway.links.exchange import Exchange, Heartbeat
from gateway.links.grpc_address import Address
from gateway.links.read_window import ReadWindow
from gateway.spliced_frame import RequestFrame
from schemas.codec import (
    DEADLINE_HEADER,
    MAX_BODY_BYTES,
    MAX_REPLY_BYTES,
    MSGPACK_HEADER,
    MSGPACK_HEADER_VALUE,
    MSGPACK_TYPE,
    WORKER_AUTH_HEADER,
)
from schemas.disagg import worker_signature
from schemas.events import Failed
from schemas.openai.errors import ErrorKind, ServingError, kind_of_status
from schemas.openai.stream import error_of
from schemas.pb.channel_pb2 import Frame
from schemas.pb.channel_pb2_grpc import ChannelStub

_HEARTBEAT: Final = Heartbeat()
_PAUSES: Final = Pauses()
_DEADLINES: Final = Deadlines()

ENVELOPE_BYTES: Final = 64 << 10
"""What a message may be larger than its payload: operation, headers."""

FAILURES: Final[Mapping[grpc.StatusCode, type[LinkError]]] = {
    grpc.StatusCode.OK: WorkerLost,
    grpc.StatusCode.CANCELLED: WorkerLost,
    grpc.StatusCode.UNKNOWN: WorkerLost,
    grpc.StatusCode.INVALID_ARGUMENT: BadReply,
    grpc.StatusCode.DEADLINE_EXCEEDED: WorkerSilent,
    grpc.StatusCode.NOT_FOUND: BadReply,
    grpc.StatusCode.ALREADY_EXISTS: BadReply,
    grpc.StatusCode.PERMISSION_DENIED: BadReply,
    grpc.StatusCode.UNAUTHENTICATED: BadReply,
    grpc.StatusCode.RESOURCE_EXHAUSTED: BadReply,
    grpc.StatusCode.FAILED_PRECONDITION: BadReply,
    grpc.StatusCode.ABORTED: WorkerLost,
    grpc.StatusCode.OUT_OF_RANGE: BadReply,
    grpc.StatusCode.UNIMPLEMENTED: BadReply,
    grpc.StatusCode.INTERNAL: WorkerLost,
    grpc.StatusCode.UNAVAILABLE: WorkerLost,
    grpc.StatusCode.DATA_LOSS: BadReply,
}
"""What the end of an open rpc means. Before it is open, all of them are ConnectFailed."""


class Tls(Struct, frozen=True, kw_only=True):
    """PEM texts. `ca` signs the worker's certificate (None: the system's own); the other two are ours, for mutual TLS."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None


def channel_options(max_frame_bytes: int, max_reply_bytes: int) -> list[tuple[str, int | str]]:
    """Settings of gRPC for a channel to a worker; the worker's side is `worker.channel.server_options`."""
    return [
        ("grpc.max_send_message_length", max_frame_bytes + ENVELOPE_BYTES),
        ("grpc.max_receive_message_length", max_reply_bytes + ENVELOPE_BYTES),
        # Our worker allows a ping every 5 s, also while it says nothing.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # A prompt of 1 MB is a few HTTP/2 frames instead of sixty, and is not held back by the window of a new stream.
        ("grpc.http2.max_frame_size", 1 << 20),
        ("grpc.http2.lookahead_bytes", 4 << 20),
        # When to connect again is decided in `dialler`; a shared subchannel would bring gRPC's own pauses along.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]


class _GrpcWire:
    """An open `Exchange` rpc and its connection."""

    def __init__(self, channel: grpc.aio.Channel, name: str) -> None:
        self._channel = channel
        self._name = name
        self._call = ChannelStub(channel).Exchange()

    async def open(self) -> None:
        """Wait until the worker has accepted the rpc. Raises ConnectFailed."""
        try:
            await self._call.initial_metadata()
            if self._call.done():
                await self._call.read()
                raise ConnectFailed(f"{self._name} ended the channel at once.")
        except grpc.aio.AioRpcError as error:
            raise ConnectFailed(f"{self._name} could not be connected to: {_told(error)}.") from error

    async def read(self) -> Frame | None:
        try:
            frame = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error
        if frame is grpc.aio.EOF:
            return None
        if not isinstance(frame, Frame):
            # gRPC gives None for a message that is not one.
            raise BadReply(f"{self._name} sent what is not a frame.")
        return frame

    async def write(self, frame: Frame) -> None:
        try:
            await self._call.write(frame)
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error
        except asyncio.InvalidStateError as error:
            raise WorkerLost(f"{self._name} has closed the channel.") from error

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()

    def _failure(self, error: grpc.aio.AioRpcError) -> LinkError:
        return FAILURES[error.code()](f"The channel to {self._name} ended: {_told(error)}.")


def _told(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name} {(error.details() or '')[:200]}".strip().rstrip(".")


class GrpcLink:
    """One worker, at `grpc://host:port`, or at `http://host:port` whose `/server_info` says the channel's port.

    Nothing is opened before the first request. `key` is the secret shared with the workers; `tls` None means plain text. A frame
    above `max_frame_bytes` is answered 413 here; so is everything 503 once the worker has said that it will end. `window`
    is how the events of fast streams are gathered, as over HTTP. Raises ValueError for a URL.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        tls: Tls | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_frame_bytes: int = MAX_BODY_BYTES,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        heartbeat: Heartbeat = _HEARTBEAT,
        window: ReadWindow | None = None,
        pauses: Pauses = _PAUSES,
    ) -> None:
        self.url = url
        self._name = f"The worker at {url}"
        self._address = Address(url, ssl_context)
        self._tls = tls
        self._max_frame_bytes = max_frame_bytes
        self._max_reply_bytes = max_reply_bytes
        self._own_headers = {} if key is None else {WORKER_AUTH_HEADER: worker_signature(key)}
        self._dialler = Dialler(
            self._dial, self._name, heartbeat=heartbeat, window=window or ReadWindow(), pauses=pauses
        )

    @property
    def exchange(self) -> Exchange | None:
        """The open exchange, for its counts; None without one."""
        return self._dialler.current

    @property
    def dials(self) -> int:
        """How often a channel was opened, or was tried to be."""
        return self._dialler.dials

    @property
    def skipped_events(self) -> int:
        """Events of unknown tags that the worker sent, over all channels so far."""
        return self._dialler.skipped_events

    # --- for the gateway: see `base.Link` ---

    async def call(
        self, operation: str, frame: RequestFrame, headers: Mapping[str, str], deadlines: Deadlines
    ) -> Reply:
        """Send one frame and wait for the whole reply: JSON, or msgpack if `headers` accept that."""
        headers = {name.lower(): value for name, value in headers.items()}
        reply = await self._whole(operation, bytes(frame), headers, deadlines)
        packed = reply.status == 200 and MSGPACK_TYPE in headers.get("accept", "")
        return reply if packed else as_json(reply)

    async def stream(
        self, operation: str, frame: RequestFrame, headers: Mapping[str, str], deadlines: Deadlines
    ) -> ReplyStream:
        """Send one frame and return when the worker has begun to answer, or has refused."""
        headers = {name.lower(): value for name, value in headers.items()}
        frame = bytes(frame)  # A message of gRPC is one piece.
        opened = await self._open(operation, frame, headers, deadlines)
        if isinstance(opened, Reply):
            return WholeReplyStream(opened)
        try:
            reply = await opened.head()
            if reply is not None:
                return WholeReplyStream(as_json(reply))
            first = await opened.read()
            if isinstance(first[0], Failed):
                return WholeReplyStream(refusal(error_of(first[0])))
            return RecordStream(opened, first, chunks_for(operation, frame, headers))
        except BaseException:
            opened.close()
            raise

    async def get(self, path: str, deadlines: Deadlines) -> Reply:
        """Ask for a side path; the worker answers it over the channel, so that a health check checks the channel too."""
        return as_json(await self._whole(path, b"", {}, deadlines))

    async def close(self) -> None:
        """End the channel; whoever waits for an answer gets WorkerLost, and later requests ConnectFailed."""
        await self._dialler.close()

    # --- for other programs ---

    async def events(
        self,
        operation: str,
        frame: bytes,
        headers: Mapping[str, str] | None = None,
        deadlines: Deadlines = _DEADLINES,
    ) -> EventStream:
        """The typed events of a request with `stream` true, once the worker has begun. Raises ServingError if it refuses.

        Close the stream, or use it as a context: leaving early cancels the request. LinkError as for the other calls.
        """
        headers = {name.lower(): value for name, value in (headers or {}).items()}
        opened = await self._open(operation, frame, headers, deadlines)
        if isinstance(opened, Reply):
            raise _refused(opened)
        try:
            reply = await opened.head()
        except BaseException:
            opened.close()
            raise
        if reply is not None:
            raise _refused(as_json(reply))
        return opened

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- below ---

    async def _whole(self, operation: str, frame: bytes, headers: Mapping[str, str], deadlines: Deadlines) -> Reply:
        opened = await self._open(operation, frame, headers, deadlines)
        if isinstance(opened, Reply):
            return opened
        try:
            return await opened.whole()
        finally:
            opened.close()

    async def _open(
        self, operation: str, frame: bytes, headers: Mapping[str, str], deadlines: Deadlines
    ) -> EventStream | Reply:
        """Send a request; or the answer at once, where sending it makes no sense. `headers` have lower-case names."""
        if len(frame) > self._max_frame_bytes:
            message = f"The request body is larger than {self._max_frame_bytes} bytes."
            return refusal(ServingError(ErrorKind.TOO_LARGE, message, code="body_too_large"))
        now = asyncio.get_running_loop().time()
        give_up = now + deadlines.total
        exchange = await self._dialler.exchange(min(now + deadlines.connect, give_up))
        if exchange.draining:
            message = "The server is shutting down."
            return refusal(ServingError(ErrorKind.UNAVAILABLE, message, code="shutting_down", retry_after=1))
        sent = {**headers, **self._own_headers, MSGPACK_HEADER: MSGPACK_HEADER_VALUE}
        sent.setdefault(DEADLINE_HEADER, str(int(deadlines.total * 1000) or 1))
        return exchange.open(operation, frame, sent, deadlines, give_up)

    async def _dial(self) -> _GrpcWire:
        target = await self._address.find()
        options = channel_options(self._max_frame_bytes, self._max_reply_bytes)
        if self._tls is None:
            channel = grpc.aio.insecure_channel(target, options=options)
        else:
            credentials = grpc.ssl_channel_credentials(self._tls.ca, self._tls.key, self._tls.certificate)
            channel = grpc.aio.secure_channel(target, credentials, options=options)
        wire = _GrpcWire(channel, self._name)
        try:
            await wire.open()
        except BaseException:
            self._address.forget()
            await wire.close()
            raise
        return wire


def _refused(reply: Reply) -> ServingError:
    """The error a reply is that came where events were due."""
    if reply.status == 200:
        return ServingError(
            ErrorKind.INVALID, "This request is not answered with events: set `stream`.", param="stream"
        )
    lifted = lift_error(reply.body, reply.status).error
    return ServingError(kind_of_status(reply.status), lifted.message, param=lifted.param, code=lifted.code)
