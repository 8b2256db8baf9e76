"""uvicorn's HTTP protocol with what it leaves out: limits on heads, our error object, and clients that pipeline or upgrade.

uvicorn itself bounds neither the size of a head nor the time it takes, answers malformed requests in plain text, tells only the
last of several pipelined requests that the client left, sends chunks to HTTP/1.0 clients, and loses the body of a request that
offers an upgrade (`curl --http2` does). Requests are answered in `gateway/cycle.py`: uvicorn's way costs more than relaying does.
"""

import asyncio
import math
import sys
from collections import deque
from secrets import token_hex
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.cycle import CYCLE, Cycle
from gateway.heads import RepeatedHead
from gateway.outbox import Outgoing, outbox_of
from gateway.room import UNLIMITED, Room
from schemas.codec import encode_json
from schemas.openai.errors import ErrorKind, ServingError

MAX_HEAD_BYTES: Final = 64 << 10
MAX_PIPELINED: Final = 16
MAX_OVERHEAD_BYTES: Final = 256 << 10
"""Bytes behind a head without a byte of body: trailers and chunk extensions, which are not kept."""
LINGER_SECONDS: Final = 2.0
"""How long a client that still sends is given to read an answer that ends its connection (RFC 9112, 9.6)."""
MAX_DISCARDED_BYTES: Final = 256 << 20
"""How much of a body is read and thrown away after its request was answered, so that the client gets to read the answer."""

CROWDED: Final = "packrelay.crowded"
"""The key of a scope that is there when the connection is one too many."""

_OFFER: Final = frozenset({b"upgrade", b"http2-settings"})
"""The headers an upgrade is offered by, and what the Connection header then names."""


class _Asked(NamedTuple):
    """A request's head as it was understood; `length_at` is the place of its Content-Length among the headers."""

    scope: Scope
    headers: list[tuple[bytes, bytes]]
    length_at: int


class GatewayProtocol(HttpToolsProtocol):
    """One client connection. `head_timeout` is in seconds, for one head to arrive; the other arguments are uvicorn's own.

    Connections for which there is no `room` get one answer and are closed; the scope says so (`CROWDED`), and whoever answers
    refuses what would take another descriptor. Those above what may be refused so are told without being read.
    """

    def __init__(self, *arguments: Any, room: Room = UNLIMITED, head_timeout: float = 15.0, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._room = room
        self._head_timeout = head_timeout
        self._head_bytes = 0
        self._begun = False  # A head that is not complete.
        self._crowded = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._refusal: ServingError | None = None
        self._running: Cycle | None = None
        self._fields: dict[bytes, bytes] = {}  # The headers by name; of a name that was sent twice, the last.
        self._waiting: deque[Cycle] = deque()  # Requests sent ahead, the oldest first.
        self._last: Cycle | None = None  # Whose body arrives now.
        self._body_left = 0  # How much of it is missing, if its length was said.
        self._discarded = 0
        self._data = b""
        self._in_message = False
        self._messages = 0  # That began in the data at hand.
        self._overhead = 0  # Bytes of the message since its head, or its last byte of body.
        self._parsed_anew = False
        self._linger_timer: asyncio.TimerHandle | None = None
        self._repeated: RepeatedHead[_Asked] = RepeatedHead()
        self._common_of: list[tuple[bytes, bytes]] | None = None
        self._common = b""

    # --- the connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        super().connection_made(transport)
        self.outgoing = Outgoing(transport, outbox_of(self.loop))
        self._crowded = len(self.connections) > self._room.served
        if len(self.connections) > self._room.served + self._room.refused:
            self._refusal = no_connections()
            self._write_refusal(self._refusal)
            self.outgoing.close()
            return
        self._head_timer = self.loop.call_later(self._head_timeout, self._head_too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        waiting, self._waiting = self._waiting, deque()
        for cycle in (self._running, *waiting):
            if cycle is not None:
                cycle.client_left()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            self._discard(data)  # The connection is being closed; what still comes has no meaning.
            return
        if self._body_left:
            data = self._body_goes_on(data)
            if not data:
                return
        if self._is_between_requests() and (body := self._repeated.body_of(data)) is not None:
            self._ask_again(body)
            return
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        fresh = not self._in_message
        self._data = data
        self._messages = 0
        self._overhead += len(data)
        super().data_received(data)
        self._data = b""
        if self._parsed_anew:
            self._parsed_anew = False  # All of it was dealt with there.
        elif self._begun:
            # Where it began behind something else, what it is in all is seen when it is complete.
            self._head_goes_on(len(data) if not self._messages or (fresh and self._messages == 1) else 0)
        elif fresh and self._messages == 1:
            self._remember(data)
        elif self._in_message and self._overhead > MAX_OVERHEAD_BYTES:
            self._end_overlong()

    def _end_overlong(self) -> None:
        """Refuse a request with too much beside its body; one that was answered already just ends."""
        self._refusal = ServingError(ErrorKind.HEADERS_TOO_LARGE, "The request has too much beside its body.")
        if self._last is not None and self._last.response_complete:
            self.outgoing.close()
        else:
            self.send_400_response("")

    def _body_goes_on(self, data: bytes) -> bytes:
        """Take what of this belongs to a body whose length is known, past the parser, which would copy it; answers what follows."""
        piece = data[: self._body_left]  # No copy where that is all of it.
        self.on_body(piece)
        if not self._body_left and self._last is not None:
            self._renew_parser()  # The one before still waits for the body.
            self._last.body_ended()
            self._in_message = False
            if self._linger_timer is not None:
                self.outgoing.close()
        return data[len(piece) :]

    def _renew_parser(self) -> None:
        self.parser = type(self.parser)(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # As uvicorn does with the first one.

    def _is_between_requests(self) -> bool:
        """Whether all that was sent is answered, so that what comes now begins a request."""
        last = self._last
        return last is not None and last.response_complete and not self._in_message

    def shutdown(self) -> None:
        """The server stops: close now, or with the end of the answer under way."""
        if self._running is None or self._running.response_complete:
            self.outgoing.close()
        else:
            self._running.keep_alive = False

    def common_head(self) -> bytes:
        """What every answer carries, as lines: the date. uvicorn replaces its list once a second."""
        headers = self.server_state.default_headers
        if headers is not self._common_of:
            self._common_of = headers
            self._common = b"".join([b"\r\n%b: %b" % header for header in headers])
        return self._common

    def close_behind(self, cycle: Cycle) -> None:
        """End the connection with this answer. A client that still sends its body would be reset before it could read it."""
        if cycle.is_whole or self._linger_timer is not None:
            self.outgoing.close()
            return
        self._linger()

    def _linger(self) -> None:
        """Say that nothing follows, and throw away what still comes for a while."""
        self.outgoing.finish()
        self.flow.resume_reading()
        if self._linger_timer is None:
            self._linger_timer = self.loop.call_later(LINGER_SECONDS, self.outgoing.close)

    def over(self, cycle: Cycle) -> None:
        """The application is done with this request."""
        if cycle.task is not None:
            self.tasks.discard(cycle.task)

    # --- heads ---

    def on_message_begin(self) -> None:
        self._in_message = True
        self._messages += 1
        self._overhead = 0
        self.url = b""
        self.headers = []
        self._begun = True
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._begun:  # What comes later is a trailer, which nobody asked for.
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._begun = False
        self._stop_head_timer()
        in_pieces = not self._messages
        if (in_pieces or len(self._data) > MAX_HEAD_BYTES) and self._parsed_bytes() > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())
        parser = self.parser
        if parser.get_method() == b"CONNECT":
            self._refuse(ServingError(ErrorKind.METHOD_NOT_ALLOWED, "This server is no proxy."))
        version = parser.get_http_version()
        self._fields = fields = dict(self.headers)
        if not self._names_one_host(fields, version):
            self._refuse(ServingError(ErrorKind.INVALID, "A request has exactly one Host header."))
        if not parser.should_upgrade():  # Else it is parsed again without the offer: see below.
            if b"content-length" in fields and b"transfer-encoding" not in fields:
                self._body_left = int(fields[b"content-length"])  # The parser has seen to it that it is a number.
            self._take_up(self._scope(version), keep_alive=version != "1.0" and parser.should_keep_alive())

    def _names_one_host(self, fields: dict[bytes, bytes], version: str) -> bool:
        """RFC 9112, 3.2; HTTP/1.0 knows no Host."""
        if len(fields) == len(self.headers):  # No name was sent twice.
            return b"host" in fields or version != "1.1"
        hosts = [name for name, _ in self.headers].count(b"host")
        return hosts == 1 or not (hosts or version == "1.1")

    def _scope(self, version: str) -> Scope:
        raw_path, query = self._target()
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": self.parser.get_method().decode("ascii"),
            "root_path": self.root_path,
            "path": self.root_path + (unquote(path) if "%" in path else path),
            "raw_path": self.root_path.encode("ascii") + raw_path,
            "query_string": query,
            "headers": self.headers,
            "state": self.app_state.copy(),
        }

    def _target(self) -> tuple[bytes, bytes]:
        """The path and the query of the request's target, which is a path, a whole URL, or * (RFC 9112, 3.2)."""
        path, _, query = self.url.partition(b"#")[0].partition(b"?")
        if path.startswith(b"/") or path == b"*":
            return path, query
        scheme, _, rest = path.partition(b"://")
        if not scheme or not rest:
            self._refuse(ServingError(ErrorKind.INVALID, "The target of the request is not a path."))
        return b"/" + rest.partition(b"/")[2], query

    def _take_up(self, scope: Scope, *, keep_alive: bool) -> Cycle:
        """Answer the request now, or after those before it."""
        if self._crowded:
            scope[CROWDED] = True
            keep_alive = False
        awaited = self._fields.get(b"expect", b"").lower() == b"100-continue" and scope["http_version"] != "1.0"
        cycle = self._last = Cycle(self, scope, self._fields, keep_alive=keep_alive, expects_continue=awaited)
        if self._running is None or self._running.response_complete:
            self._start(cycle)
        else:
            self._waiting.append(cycle)
            if len(self._waiting) > MAX_PIPELINED:
                self._refuse(ServingError(ErrorKind.INVALID, "Too many requests were sent ahead."))
        return cycle

    def _remember(self, data: bytes) -> None:
        """A request came as a whole: the next one may have the same head."""
        cycle = self._last
        if cycle is not None and cycle.is_whole and cycle.keep_alive and not cycle.expects_continue and cycle.scope:
            names = [name for name, _ in self.headers]
            if names.count(b"content-length") == 1 and b"transfer-encoding" not in names:
                scope = {key: value for key, value in cycle.scope.items() if key != CYCLE}
                self._repeated.learn(data, _Asked(scope, self.headers.copy(), names.index(b"content-length")))

    def _ask_again(self, body: bytes) -> None:
        """Take up a request that has the head of one before, but for the length of its body."""
        asked = self._repeated.understood
        if asked is None:
            raise RuntimeError("A head that was not understood cannot be repeated.")
        headers = asked.headers.copy()
        headers[asked.length_at] = (b"content-length", b"%d" % len(body))
        self._fields = dict(headers)
        cycle = self._take_up({**asked.scope, "headers": headers, "state": self.app_state.copy()}, keep_alive=True)
        cycle.body_arrived(body)
        cycle.body_ended()

    def _start(self, cycle: Cycle) -> None:
        self._running = cycle
        cycle.task = self.loop.create_task(cycle.run(self.app))
        self.tasks.add(cycle.task)

    def answered(self) -> None:
        """The answer is complete: the next request, or waiting for one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self._linger_timer is not None:
            return
        self.flow.resume_reading()
        if self._waiting:
            self._start(self._waiting.popleft())
            return
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._look_if_idle)

    def _look_if_idle(self) -> None:
        """Close a connection that was idle for too long. One timer for all of its requests: it is moved when it fires."""
        self._idle_timer = None
        if self._running is not None and not self._running.response_complete:
            return  # The end of this answer starts it again.
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._look_if_idle)
        elif not self.transport.is_closing():
            self.outgoing.close()

    def _head_goes_on(self, size: int) -> None:
        """So many bytes more, and still no end of the head."""
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refusal = _head_too_large()
            self.send_400_response("")
        if self._head_timer is None and self._refusal is None:
            self._head_timer = self.loop.call_later(self._head_timeout, self._head_too_slow)

    def _parsed_bytes(self) -> int:
        """The size of a complete head, without its first line's ends: each header is framed by four bytes."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse(self, error: ServingError) -> None:
        """Stop the parser: what a callback raises comes back to `data_received`, which asks for `send_400_response`."""
        self._refusal = error
        raise error

    def _head_too_slow(self) -> None:
        self._head_timer = None
        if self._running is not None and not self._running.response_complete:
            # What waits behind a running answer is not late yet; the answer must not be cut short for it.
            self._head_timer = self.loop.call_later(self._head_timeout, self._head_too_slow)
            return
        if not self.transport.is_closing() and self._begun:
            self._refusal = ServingError(ErrorKind.TIMED_OUT_READING, "The head of the request did not arrive in time.")
            self.send_400_response("")
        self.outgoing.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # --- what uvicorn answers itself ---

    def send_400_response(self, msg: str) -> None:
        """Our error object for a request that is not HTTP. Never into the middle of another answer: that one just ends."""
        error = self._refusal or ServingError(ErrorKind.INVALID, msg)
        self._refusal = error
        running = self._running
        if running is not None and not running.response_complete:
            running.client_left()
            if running.response_started:
                self.outgoing.close()
                return
        self._write_refusal(error)
        self._linger()

    def _write_refusal(self, error: ServingError) -> None:
        body = encode_json(error.body())
        head = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", token_hex(16).encode("ascii")),
            (b"connection", b"close"),
        ]
        if error.retry_after is not None:
            head.append((b"retry-after", b"%d" % math.ceil(error.retry_after)))
        lines = b"".join(b"%b: %b\r\n" % pair for pair in head)
        self.outgoing.write(b"%b%b\r\n%b" % (STATUS_LINE[error.status], lines, body))

    # --- bodies ---

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        if self._body_left:
            self._body_left -= len(body)
        cycle = self._last
        if cycle is None or not cycle.response_complete:
            if cycle is not None:
                cycle.body_arrived(body)
            return
        self._discard(body)

    def _discard(self, data: bytes) -> None:
        self._discarded += len(data)
        if self._discarded > MAX_DISCARDED_BYTES:
            self.outgoing.close()

    def on_message_complete(self) -> None:
        self._in_message = False
        if self._linger_timer is not None:
            self.outgoing.close()
        self._body_left = 0
        if self._last is not None and not self.parser.should_upgrade():
            self._last.body_ended()

    # --- upgrades ---

    def _unsupported_upgrade_warning(self) -> None:
        """An offer to upgrade that is not taken is an ordinary request (RFC 9110, 7.8), but the parser stopped at its head."""
        stopped = sys.exception()
        rest = self._data[stopped.args[0] :] if stopped is not None else b""
        kept = [(name, _without_offer(value) if name == b"connection" else value) for name, value in self.headers]
        version = self.parser.get_http_version().encode("ascii")
        head = [
            b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version),
            *(
                b"%b: %b" % (name, value)
                for name, value in kept
                if name not in _OFFER and (value or name != b"connection")
            ),
            b"",
            b"",
        ]
        self._renew_parser()
        self._in_message = False
        self._parse(b"\r\n".join(head) + rest)
        self._parsed_anew = True


def _without_offer(connection: bytes) -> bytes:
    """A Connection header's value without the names of what an upgrade is offered by."""
    return b", ".join(name for part in connection.split(b",") if (name := part.strip()).lower() not in _OFFER and name)


def no_connections() -> ServingError:
    """The 503 for a connection that is one too many."""
    message = "The server has too many connections at the moment."
    return ServingError(ErrorKind.UNAVAILABLE, message, code="no_connections", retry_after=1)


def _head_too_large() -> ServingError:
    message = f"The head of the request is larger than {MAX_HEAD_BYTES} bytes."
    return ServingError(ErrorKind.HEADERS_TOO_LARGE, message)
