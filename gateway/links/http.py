"""The link over HTTP/1.1: every request body is one tagged msgpack frame, replies are JSON, SSE or msgpack.

A client of our own on `asyncio.Protocol` and llhttp, because a general one costs several times as much for a small request.
"""

import re
import ssl
from collections.abc import Mapping
from functools import lru_cache
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from gateway.links.base import BadReply, ConnectFailed, Deadlines, Reply, Take, WorkerLost
from gateway.links.connection import Connection, Goal, StaleConnection
from gateway.links.pool import Pool
from gateway.links.read_window import ReadWindow
from gateway.links.sse import SseReader
from gateway.spliced_frame import RequestFrame
from schemas.codec import FRAME_TYPE, MAX_REPLY_BYTES, MSGPACK_HEADER, MSGPACK_HEADER_VALUE, WORKER_AUTH_HEADER
from schemas.disagg import worker_signature

DEFAULT_MAX_IDLE_SECONDS: Final = 4.0
"""Stock workers close a connection that was idle for 5 s."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_TARGET: Final = re.compile(r"/[!-~]*")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OWN_HEADERS: Final = frozenset(
    ("host", "accept-encoding", "connection", "content-type", "content-length", "transfer-encoding", MSGPACK_HEADER)
)


class HttpReplyStream:
    """A reply being read from its connection."""

    def __init__(self, connection: Connection, max_reply_bytes: int) -> None:
        self.status: int = connection.status
        self.headers: Mapping[str, str] = connection.headers
        self._connection: Connection | None = connection
        self._max_reply_bytes = max_reply_bytes
        self._events = SseReader() if connection.is_event_stream else None
        self._has_begun = False

    @property
    def failed(self) -> bool:
        """Whether the stream ended with an error record."""
        return self._events is not None and self._events.failed

    async def read(self) -> bytes:
        """The next bytes, as many as are here; whole events for a stream; `b""` once the reply is complete."""
        events = self._events
        if events is None:
            return await self._open_connection().read()
        if events.last:
            last, events.last = events.last, b""
            return self._passed(last, events)
        while not events.ended:
            data = await self._open_connection().read()
            if not data:
                raise WorkerLost("The worker ended its stream without a terminal.")
            complete = events.feed(data)
            if complete:
                return self._passed(complete, events)
        return b""

    async def pass_on(self, take: Take) -> None:
        """Give whole events to `take` as they arrive; see `ReplyStream`."""
        if self._events is not None and not self._events.ended and self._connection is not None:
            await self._connection.pass_on(self._events.passing(take))

    def _passed(self, complete: bytes, events: SseReader) -> bytes:
        """Note what these events mean for the connection: the first one, or the last."""
        if events.ended:
            self.close()
        elif not self._has_begun and b"data:" in complete:
            self._has_begun = True
            self._open_connection().event_seen()
        return complete

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise WorkerLost("The reply was closed before its end.")
        return self._connection

    async def body(self) -> bytes:
        """All that is left, up to the link's reply limit."""
        pieces: list[bytes] = []
        size = 0
        while piece := await self.read():
            pieces.append(piece)
            size += len(piece)
            if size > self._max_reply_bytes:
                self.close()
                raise BadReply(f"The worker sent a reply of more than {self._max_reply_bytes} bytes.")
        return b"".join(pieces)

    def close(self) -> None:
        """Give the connection back, or end it if the reply is not complete. What may follow a stream's terminal is drained."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._events is not None and self._events.ended:
            connection.drain()
        else:
            connection.release()


class HttpLink:
    """One worker at `http://` or `https://`; a path in the URL is put before every operation.

    `max_reply_bytes` bounds a reply that is read whole. `max_idle_seconds` must be less than the worker's own keep-alive time.
    `ssl_context` is for `https`; by default the system's certificates are trusted.
    `key` is the secret shared with the workers: they are shown that the gateway holds it.
    Fast streams are read as `window` says. Raises ValueError for a URL it cannot use.
    """

    def __init__(
        self,
        url: str,
        *,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        max_idle_seconds: float = DEFAULT_MAX_IDLE_SECONDS,
        ssl_context: ssl.SSLContext | None = None,
        window: ReadWindow | None = None,
        key: str | None = None,
    ) -> None:
        self.url = url
        scheme, host, port, prefix = _parse(url)
        tls = (ssl_context or ssl.create_default_context()) if scheme == "https" else None
        self._prefix = prefix
        self._max_reply_bytes = max_reply_bytes
        self._pool = Pool(
            f"The worker at {url}", host, port, tls, max_idle_seconds, max_reply_bytes, window or ReadWindow()
        )
        common = f" HTTP/1.1\r\nHost: {_host_header(scheme, host, port)}\r\nAccept-Encoding: identity\r\n"
        self._get_tail = f"{common}\r\n".encode("ascii")
        shown = f"{WORKER_AUTH_HEADER}: {worker_signature(key)}\r\n" if key is not None else ""
        self._post_tail = f"{common}Content-Type: {FRAME_TYPE}\r\n{MSGPACK_HEADER}: {MSGPACK_HEADER_VALUE}\r\n{shown}"

    @property
    def open_connections(self) -> int:
        """Connections to the worker, idle ones included."""
        return self._pool.open_connections

    @property
    def idle_connections(self) -> int:
        """Connections that wait for a request."""
        return self._pool.idle_connections

    async def call(
        self, operation: str, frame: RequestFrame, headers: Mapping[str, str], deadlines: Deadlines
    ) -> Reply:
        """POST one frame and wait for the whole reply. Raises ValueError for a header that HTTP or this link forbids."""
        head = self._post(operation, frame, headers)
        return _whole(await self._exchange(head, frame, deadlines, Goal.END))

    async def stream(
        self, operation: str, frame: RequestFrame, headers: Mapping[str, str], deadlines: Deadlines
    ) -> HttpReplyStream:
        """POST one frame and return when the reply's head is here. Raises ValueError as `call`."""
        head = self._post(operation, frame, headers)
        connection = await self._exchange(head, frame, deadlines, Goal.HEAD)
        return HttpReplyStream(connection, self._max_reply_bytes)

    async def get(self, path: str, deadlines: Deadlines) -> Reply:
        """GET a side path."""
        head = f"GET {self._target(path)}".encode("ascii") + self._get_tail
        return _whole(await self._exchange(head, b"", deadlines, Goal.END))

    async def close(self) -> None:
        """End all connections; whoever waits for a reply gets WorkerLost, and later requests ConnectFailed."""
        await self._pool.close()

    async def _exchange(self, head: bytes, frame: RequestFrame, deadlines: Deadlines, goal: Goal) -> Connection:
        """Send on an idle connection, or on a new one; on a second one if the worker had closed the first while it was idle."""
        now = monotonic()
        give_up = now + deadlines.total
        connection = self._pool.take(now)
        if connection is not None:
            try:
                await connection.ask(head, frame, deadlines, give_up, goal)
                return connection
            except StaleConnection as stale:
                connection = await self._redial(stale, deadlines, give_up)
        else:
            connection = await self._pool.dial(min(now + deadlines.connect, give_up))
        await connection.ask(head, frame, deadlines, give_up, goal)
        return connection

    async def _redial(self, stale: StaleConnection, deadlines: Deadlines, give_up: float) -> Connection:
        """A new connection after a stale one. The worker may have had the request, so failing is a loss, not ConnectFailed."""
        now = monotonic()
        try:
            return await self._pool.dial(min(now + deadlines.connect, give_up))
        except ConnectFailed as failure:
            raise WorkerLost(f"{stale} A new connection failed: {failure}") from failure

    def _post(self, operation: str, frame: RequestFrame, headers: Mapping[str, str]) -> bytes:
        head = f"POST {self._target(operation)}{self._post_tail}Content-Length: {len(frame)}\r\n{_lines(headers)}\r\n"
        return head.encode("latin-1")

    def _target(self, path: str) -> str:
        _check_target(path)
        return self._prefix + path


def _whole(connection: Connection) -> Reply:
    reply = Reply(connection.status, connection.headers, connection.take())
    connection.release()
    return reply


def _lines(headers: Mapping[str, str]) -> str:
    _check_names(tuple(headers))
    values = "".join(headers.values())
    if not (values.isascii() and values.isprintable()) and not _HEADER_VALUE.fullmatch(values):
        raise ValueError("A header holds characters that HTTP does not allow.")
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


@lru_cache(maxsize=64)  # They are few and the same for every request.
def _check_names(names: tuple[str, ...]) -> None:
    for name in names:
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"The header {name!r} holds characters that HTTP does not allow.")
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"The header {name!r} is set by the link alone.")


@lru_cache(maxsize=64)  # They are few too.
def _check_target(path: str) -> None:
    if not _TARGET.fullmatch(path):
        raise ValueError(f"{path!r} is not a request path.")


def _parse(url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port, and the path without its last slash."""
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError(f"The worker URL {url!r} is not of the form http://host:port or https://host:port.")
    if parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"The worker URL {url!r} may have a path, but no user, query or fragment.")
    prefix = parts.path.rstrip("/")
    if prefix and not _TARGET.fullmatch(prefix):
        raise ValueError(f"The worker URL {url!r} has a path that HTTP does not allow.")
    return parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme], prefix


def _host_header(scheme: str, host: str, port: int) -> str:
    name = f"[{host}]" if ":" in host else host.encode("idna").decode("ascii")
    return name if port == _DEFAULT_PORTS[scheme] else f"{name}:{port}"
