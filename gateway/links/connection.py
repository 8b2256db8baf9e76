"""One connection to a worker: HTTP/1.1, one exchange at a time, parsed by llhttp (`httptools`).

Who owns what: the pool owns an idle connection; a call or a reply stream owns a busy one until it calls `release`, `drain` or
`abort`, exactly one of which ends the exchange. All of them return at once.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from time import monotonic
from typing import Final, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.heads import RepeatedHead
from gateway.links.base import BadReply, Deadlines, LinkError, WorkerLost, WorkerSilent
from gateway.links.chunks import LAST_CHUNK, ends_chunk, whole_chunks
from gateway.links.read_window import ReadWindow
from gateway.outbox import Outgoing, outbox_of
from gateway.spliced_frame import RequestFrame
from schemas.codec import SSE_TYPE

HIGH_WATER_BYTES: Final = 128 << 10
"""Unread bytes of a stream above which the worker's socket is not read; a single read may bring twice as many."""
MAX_OVERHEAD_BYTES: Final = 256 << 10
"""Bytes without a finished head or a byte of body: heads, trailers, chunk extensions. Stock perf headers alone may be 80 KiB."""
JOIN_BYTES: Final = 16 << 10
"""A frame up to this size is copied behind its head: cheaper than a write of two parts."""
MAX_ERROR_BYTES: Final = 256 << 10
"""What is kept of an error's body: of a longer one only its status counts."""
DRAIN_SECONDS: Final = 1.0
DRAIN_BYTES: Final = 1 << 20
"""What may follow a stream's terminal (stock metrics) before keeping the connection is not worth it."""
KEEP_ALIVE_RACE_SECONDS: Final = 1.0
"""A reused connection that dies within this time was closed by the worker while idle; later it is a lost worker."""


class StaleConnection(WorkerLost):
    """A reused connection died before a byte of the reply: the worker had closed it while it was idle."""


class Goal(Enum):
    """What the owner of a busy connection is waiting for. Failure and the end of the reply always wake it."""

    HEAD = "head"
    DATA = "data"
    END = "end"


class Owner(Protocol):
    """Where connections live between exchanges."""

    def park(self, connection: "Connection") -> None:
        """Take a connection whose exchange is over and that can carry another."""
        ...

    def forget(self, connection: "Connection") -> None:
        """The connection is closed."""
        ...


class Connection(asyncio.Protocol):
    """A protocol whose transport may be uvloop's or asyncio's."""

    def __init__(self, owner: Owner, name: str, max_reply_bytes: int, window: ReadWindow) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._name = name
        self._max_reply_bytes = max_reply_bytes
        self._window = window
        self._fast = window.fast
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None
        self._abandoned = False
        self._parser = HttpResponseParser(self)
        self._repeated: RepeatedHead[tuple[int, dict[str, str]]] = RepeatedHead()
        self._exchanges = 0
        self._paused = False  # Not read because what came is not taken.
        self._windowed = False  # Not read before the end of the read window.
        self._waiter: asyncio.Future[None] | None = None
        self._taker: Callable[[bytes], bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.parked_at = 0.0
        self._busy = False
        self._reset(Goal.END, Deadlines(), 0.0)

    def _reset(self, goal: Goal, deadlines: Deadlines, give_up: float) -> None:
        """Forget the exchange before."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self._streamed = goal is Goal.HEAD
        self._deadlines = deadlines
        self._give_up = give_up
        self._sent_at = 0.0
        self._due = 0.0
        self._answered = False
        self._head_done = False
        self._interim = False
        self._reusable = False
        self._delimited = False
        self._complete = False
        self._draining = False
        self._awaiting_event = False
        self._is_chunked = False
        self._between_chunks = False
        self._read_at = 0.0
        self._failure: LinkError | None = None
        self._pieces: list[bytes] = []
        self._unread = 0
        self._skipped = 0  # Bytes of an error that were not kept.
        self._had_interim = False
        self._body_left = 0  # How much of the body is missing, if its length was said.
        self._drained = 0
        self._overhead = 0

    # --- the owner's side ---

    async def ask(self, head: bytes, frame: RequestFrame, deadlines: Deadlines, give_up: float, goal: Goal) -> None:
        """Send one request and wait until its head (for a stream) or its whole reply is here. `give_up` is on the monotonic clock.

        On any failure, cancellation included, the connection is ended: that is what aborts the request on the worker.
        """
        self._send(head, frame, deadlines, give_up, goal)
        try:
            while not (self._complete or (self._head_done and goal is Goal.HEAD)):
                if self._failure is not None:
                    raise self._failure
                await self._wait(goal)
        except BaseException:
            self.abort()
            raise

    async def read(self) -> bytes:
        """The next bytes of the body, as many as are here; `b""` at its end. What arrived before a failure comes first."""
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if self._complete:
                return b""
            await self._wait(Goal.DATA)
        if self._streamed and not self._awaiting_event:
            # The reader may be late: the worker's silence begins now.
            self._due = monotonic() + self._deadlines.idle
        return self.take()

    async def pass_on(self, taker: Callable[[bytes], bool]) -> None:
        """Give the bytes of the body to `taker` as they arrive, until it answers False, or raises BadReply, or `read` has news."""
        if self._pieces or self._complete or self._failure is not None:
            return
        self._taker = taker
        try:
            await self._wait(Goal.DATA)
        finally:
            self._taker = None

    def take(self) -> bytes:
        """The body bytes that are here."""
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._unread = 0
        if self._paused:
            self._resume()
        return data

    def event_seen(self) -> None:
        """The first event of a stream is here: from now on the idle deadline counts."""
        self._awaiting_event = False
        self._expect(self._deadlines.idle)

    @property
    def is_event_stream(self) -> bool:
        """Whether the reply is a successful SSE stream."""
        return self.status == 200 and self.headers.get("content-type", "").lower().startswith(SSE_TYPE)

    def release(self) -> None:
        """Give the connection back if the reply was read to its end and another can follow; end it otherwise."""
        outgoing = self._outgoing
        if (
            self._complete
            and self._reusable
            and outgoing is not None
            and self.is_usable()
            # A reply that overtook its request (413): the rest of the frame would be read as the next request.
            and outgoing.is_empty()
        ):
            if self._paused:
                self._resume()
            self._pieces = []
            self._busy = False
            self.parked_at = monotonic()
            self._owner.park(self)
        else:
            self.abort()

    def drain(self) -> None:
        """The owner has all it needs: throw away what may still follow, then give the connection back."""
        if self._complete or self._failure is not None:
            self.release()
            return
        self._draining = True
        self._awaiting_event = False
        self._pieces = []
        self._unread = 0
        self._expect(DRAIN_SECONDS)

    def abort(self) -> None:
        """End the connection now, without waiting for what is not written yet. A dial that is not finished is ended when it is."""
        self._abandoned = True
        if self._transport is not None:
            self._transport.abort()

    def end(self) -> None:
        """As `abort`, because the link is being closed: whoever waits for a reply is told so."""
        self._fail(WorkerLost(f"The link to {self._name} was closed."))

    def is_usable(self) -> bool:
        """Whether a request may be written. uvloop raises on a write to a connection that the peer has just closed."""
        return self._transport is not None and not self._transport.is_closing()

    def _send(self, head: bytes, frame: RequestFrame, deadlines: Deadlines, give_up: float, goal: Goal) -> None:
        self._reset(goal, deadlines, give_up)
        self._busy = True
        self._exchanges += 1
        self._sent_at = monotonic()
        if self._outgoing is None:
            pass
        elif not isinstance(frame, bytes):
            self._outgoing.writelines([head, *frame.pieces])
        elif len(frame) <= JOIN_BYTES:
            self._outgoing.write(head + frame)
        else:
            self._outgoing.writelines((head, frame))
        self._expect(deadlines.first_byte)

    async def _wait(self, goal: Goal) -> None:
        self._goal = goal
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        goal = self._goal
        if (
            self._complete
            or self._failure is not None
            or (goal is Goal.DATA and self._pieces)
            or (goal is Goal.HEAD and self._head_done)
        ):
            self._wake_now()

    # --- deadlines: one lazy timer, which is moved only to an earlier time and looks at `_due` when it fires ---

    def _expect(self, seconds: float) -> None:
        """The worker has this long to say something."""
        self._due = monotonic() + seconds
        due = min(self._due, self._give_up)
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._arm(due)

    def _arm(self, due: float) -> None:
        self._timer = self._loop.call_at(due, self._tick)
        self._timer_at = due

    def _tick(self) -> None:
        self._timer = None
        if not self._busy or self._complete:
            return
        now = monotonic()
        due = min(self._due, self._give_up)
        if self._streamed and self._unread and now < self._give_up:
            # It is the reader that is late, not the worker.
            self._expect(self._deadlines.idle)
        elif now < due:
            self._arm(due)
        else:
            self._fail(WorkerSilent(f"{self._name} {self._silence(now)}."))

    def _silence(self, now: float) -> str:
        if now >= self._give_up:
            return f"did not finish its reply within {self._deadlines.total} s"
        if not self._head_done or self._awaiting_event:
            return f"did not begin to answer within {self._deadlines.first_byte} s"
        return f"fell silent for {self._deadlines.idle} s within its reply"

    def _fail(self, failure: LinkError) -> None:
        """The exchange is over without its reply."""
        if self._failure is None and not self._complete:
            self._failure = failure
        self.abort()
        self._wake()

    # --- reading: paused while the connection is full, and until the end of a read window ---

    def _pause(self) -> None:
        self._paused = True
        self._settle_reading()

    def _resume(self) -> None:
        self._paused = False
        self._settle_reading()
        if self.is_usable():
            self._expect(self._deadlines.idle)

    def _heard_more(self) -> None:
        """More of a stream has come: the silence begins anew, and of a fast stream more may arrive before the next read.

        The worker's time is moved without moving the timer, which looks at it when it fires; only one that is too late is set anew.
        """
        now = monotonic()
        self._due = now + self._deadlines.idle
        if self._timer_at > self._due:
            self._expect(self._deadlines.idle)
        if now - self._read_at < self._fast and not self._windowed:
            self._windowed = True
            self._settle_reading()
            self._window.at_end(self._window_over)
        self._read_at = now

    def _window_over(self) -> None:
        self._windowed = False
        self._settle_reading()

    def _settle_reading(self) -> None:
        """Read, or do not. The transport takes being told twice."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._paused or self._windowed:
            transport.pause_reading()
        else:
            transport.resume_reading()

    # --- the transport's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The dial succeeded, perhaps for a caller who has gone."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's and TLS transports do not derive from it
        self._outgoing = Outgoing(self._transport, outbox_of(self._loop))
        if self._abandoned:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes of the reply; on an idle connection nobody asked for any, and it is closed."""
        if self._between_chunks and (events := whole_chunks(data)):
            self._events_arrived(events)
        elif not self._busy:
            self.abort()
        elif self._body_left:
            self._body_goes_on(data)
        elif not self._answered and (body := self._repeated.body_of(data)) is not None:
            self._answer_again(body)
        else:
            self._parse(data)

    def _events_arrived(self, events: bytes) -> None:
        """Tokens, nearly always: the parser would find the same in their chunks, and can go on behind them."""
        taker = self._taker
        if taker is None:
            self.on_body(events)
            self._after_data()
            return
        self._heard_more()
        try:
            if not taker(events):
                self._stop_passing_on()
        except BadReply as failure:
            self._fail(failure)

    def _body_goes_on(self, data: bytes) -> None:
        """More of a body whose length is known, past the parser, which would copy it."""
        if len(data) > self._body_left:
            data = data[: self._body_left]
            self._reusable = False  # Nobody asked for what follows.
        self.on_body(data)
        if not self._body_left:
            self._parser = HttpResponseParser(self)  # The one before still waits for the body.
            self.on_message_complete()
        self._after_data()

    def _answer_again(self, body: bytes) -> None:
        """A whole reply with the head of one before, but for the length of its body."""
        understood = self._repeated.understood
        if understood is None:
            raise RuntimeError("A head that was not understood cannot be repeated.")
        self.status, headers = understood
        self.headers = {**headers, "content-length": str(len(body))}
        self._answered = self._head_done = self._delimited = self._reusable = True
        self.on_body(body)
        self.on_message_complete()
        self._wake_now()

    def _parse(self, data: bytes) -> None:
        if self._between_chunks and data.endswith(LAST_CHUNK) and (events := whole_chunks(data[: -len(LAST_CHUNK)])):
            self.on_body(events)
            data = LAST_CHUNK
        begins, in_head = not self._answered, not self._head_done
        self._answered = True
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._reusable = False
            if not self._complete:
                failure = BadReply(f"{self._name} sent what is not an HTTP/1.1 reply: {error}.")
                failure.__cause__ = error
                self._fail(failure)
                return
        if self._complete and self._taker is None and not self._draining:
            if begins and self._reusable and not (self._had_interim or "transfer-encoding" in self.headers):
                self._repeated.learn(data, (self.status, self.headers))
            self._wake_now()
        else:
            self._between_chunks = self._is_chunked and not self._skipped and self._ends_chunk_or_head(data, in_head)
            self._after_data()

    def _ends_chunk_or_head(self, data: bytes, in_head: bool) -> bool:
        """Whether the parser has nothing half done behind `data`, which came while the head was not complete, or after it."""
        if in_head and self._head_done and not self._pieces:
            return data.endswith(b"\r\n\r\n")
        return ends_chunk(data, self._pieces)

    def _after_data(self) -> None:
        if self._complete:
            if self._draining:
                self.release()
        elif self._overhead > MAX_OVERHEAD_BYTES:
            self._fail(BadReply(f"{self._name} sent more than {MAX_OVERHEAD_BYTES} bytes of headers."))
        elif self._head_done:
            if not self._streamed:
                self._expect(self._deadlines.idle)
            elif not (self._awaiting_event or self._draining):
                self._heard_more()
            if self._streamed and self._unread > HIGH_WATER_BYTES:
                self._pause()
        if self._taker is not None and self._pieces:
            self._hand_over(self._taker)
        else:
            self._wake()

    def _hand_over(self, taker: Callable[[bytes], bool]) -> None:
        """Give what is here to the taker; its task is only woken when it does not want more, or no more comes."""
        try:
            if not taker(self.take()) or self._complete or self._failure is not None:
                self._stop_passing_on()
        except BadReply as failure:
            self._fail(failure)

    def _stop_passing_on(self) -> None:
        self._taker = None
        self._wake_now()

    def _wake_now(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def eof_received(self) -> None:
        """The worker has said all it will. Only a reply that is delimited by the end of the connection is complete by it."""
        if self._head_done and not self._delimited and self._failure is None:
            self._complete = True
        self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone, by either side."""
        self._abandoned = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._owner.forget(self)
        if self._busy and not self._complete and self._failure is None:
            self._failure = self._loss()
            self._failure.__cause__ = error
        self._wake()

    def _loss(self) -> WorkerLost:
        raced = monotonic() - self._sent_at < KEEP_ALIVE_RACE_SECONDS
        if self._exchanges > 1 and not self._answered and raced:
            return StaleConnection(f"{self._name} had closed the idle connection.")
        return WorkerLost(f"{self._name} closed the connection before its reply was complete.")

    # --- the parser's side ---

    def on_message_begin(self) -> None:
        """A second reply to one request is not to be taken for the next one's."""
        if self._complete:
            self._reusable = False
            raise HttpParserError("more than one reply")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the head; those of a trailer are dropped. Repeated ones are joined as HTTP says."""
        if self._head_done:
            return
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        known = self.headers.get(key)
        self.headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        """The head is here. 1xx heads are not the reply."""
        status = self._parser.get_status_code()
        self._interim = 100 <= status < 200
        if self._interim:
            self._had_interim = True
            self.headers = {}
            return
        self.status = status
        self._overhead = 0
        # The parser knows this only now: asked later, it always answers no.
        self._reusable = self._parser.should_keep_alive()
        self._judge_head()
        self._head_done = self._failure is None

    def _judge_head(self) -> None:
        headers = self.headers
        length = headers.get("content-length")
        self._is_chunked = headers.get("transfer-encoding", "").lower().endswith("chunked")
        self._delimited = length is not None or self._is_chunked
        if length is not None and length.isdecimal() and "transfer-encoding" not in headers:
            self._body_left = int(length)
        self._awaiting_event = self._streamed and self.is_event_stream
        if not 200 <= self.status < 600:
            self._failure = BadReply(f"{self._name} answered with the status {self.status}.")
        elif headers.get("content-encoding", "identity").lower() != "identity":
            self._failure = BadReply(f"{self._name} answered in an encoding that was not asked for.")
        elif (
            length is not None
            and int(length) > self._max_reply_bytes
            and self.status < 400
            and not self._awaiting_event
        ):
            self._failure = self._oversize()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._overhead = 0
        if self._body_left:
            self._body_left -= len(body)
        if self._draining:
            self._drained += len(body)
            if self._drained > DRAIN_BYTES:
                self.abort()
            return
        if self.status >= 400 and (self._skipped or self._unread + len(body) > MAX_ERROR_BYTES):
            self._skip(body)
            return
        self._unread += len(body)
        if self._streamed or self._unread <= self._max_reply_bytes:
            self._pieces.append(body)
        elif self._failure is None:
            self._failure = self._oversize()

    def _skip(self, body: bytes) -> None:
        """A longer error tells nobody more; stock workers send the whole request back."""
        self._skipped += len(body)
        if self._skipped > self._max_reply_bytes and self._failure is None:
            self._failure = self._oversize()

    def _oversize(self) -> BadReply:
        return BadReply(f"{self._name} sent a reply of more than {self._max_reply_bytes} bytes.")

    def on_message_complete(self) -> None:
        """The end of a reply, or of a 1xx head."""
        self._body_left = 0
        self._between_chunks = False
        if self._interim:
            self._interim = False
        elif self._failure is None:
            self._complete = True
