"""The answer to one request over a channel: events as they come, or one whole reply, under the deadlines of `base.Deadlines`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Final, Protocol, Self

import structlog

from gateway.links.base import BadReply, Deadlines, LinkError, Reply, WorkerLost, WorkerSilent
from gateway.links.event_buffer import EventBuffer
from gateway.links.read_window import ReadWindow
from schemas.events import Delta, Done, Event, Failed

_log = structlog.get_logger(__name__)

_TERMINALS: Final = (Done, Failed)
NEVER: Final = float("-inf")


class Owner(Protocol):
    """The exchange a stream belongs to."""

    def cancel(self, number: int) -> None:
        """The stream is not wanted any more. Unknown numbers are fine."""
        ...


class EventStream:
    """One request's answer, read by one task. Close it, whatever happens: before the end that is what cancels the request.

    Iterating gives the events one by one; `read` gives all that are here. Used as an async context it closes itself.
    """

    def __init__(
        self, owner: Owner, number: int, name: str, deadlines: Deadlines, give_up: float, window: ReadWindow
    ) -> None:
        self.number = number
        self.reply: Reply | None = None
        """The whole reply, if the worker sent that instead of events. Its body is msgpack."""
        self.ended = False
        """Whether the worker has said its last word: a terminal event or a reply."""
        self._owner = owner
        self._name = name
        self._deadlines = deadlines
        self._give_up = give_up
        self._window = window
        self._loop = asyncio.get_running_loop()
        self._buffer = EventBuffer()
        self._failure: LinkError | None = None
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._taker: Callable[[list[Event]], bool] | None = None
        self._read_at = NEVER
        self._late = False
        self._begun = False
        self._due = min(self._loop.time() + deadlines.first_byte, give_up)
        self._timer: asyncio.TimerHandle | None = self._loop.call_at(self._due, self._tick)
        self._timer_at = self._due

    # --- the reader's side ---

    async def head(self) -> Reply | None:
        """Wait until the worker has answered: its whole reply, or None if events come. Raises LinkError."""
        while not self._buffer and self.reply is None:
            await self._more()
        return self.reply

    async def whole(self) -> Reply:
        """The whole reply. Raises as `head`, and BadReply if events come instead."""
        reply = await self.head()
        if reply is None:
            raise BadReply(f"{self._name} answered with events where a whole reply was due.")
        return reply

    async def read(self) -> list[Event]:
        """All events that are here, at least one; none once the answer is complete. What came before a failure comes first."""
        while not self._buffer:
            if self.ended:
                return []
            await self._more()
        self._read_at = self._loop.time()
        return self._buffer.take()

    async def pass_on(self, taker: Callable[[list[Event]], bool]) -> None:
        """Give events to `taker` as they come, until it answers False, or `read` has the last ones or a failure."""
        if self._buffer or self.ended or self._failure is not None:
            return
        self._taker = taker
        try:
            await self._more()
        finally:
            self._taker = None

    async def __aiter__(self) -> AsyncIterator[Event]:
        while events := await self.read():
            for event in events:
                yield event

    def close(self) -> None:
        """Cancel the request if it is not complete. Never blocks; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._stop_timer()
        if not self.ended and self._failure is None:
            self._failure = WorkerLost("The stream was closed before its end.")
            self._owner.cancel(self.number)
            self._wake_now()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _more(self) -> None:
        """Wait for whatever comes next."""
        if self._failure is not None:
            raise self._failure
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # --- the exchange's side ---

    def put(self, event: Event) -> None:
        """Take one event. `wake` follows when all of a batch were put."""
        self._buffer.put(event)
        if isinstance(event, Delta):
            self._begun = True
        elif isinstance(event, _TERMINALS):
            self.ended = True
            self._stop_timer()

    def wake(self, now: float) -> None:
        """Events were put. The reader of a fast stream is woken at the end of a window; the first event and the last never wait."""
        if self._begun:
            self._due = min(now + self._deadlines.idle, self._give_up)
            if self._due < self._timer_at and not self.ended:
                self._arm()
        if self._waiter is not None:
            if self.ended:
                self._wake_now()
            elif not self._window.is_fast(self._read_at, now):
                self._deliver(now)
            elif not self._late:
                self._late = True
                self._window.at_end(self._window_over)

    def answer(self, reply: Reply) -> None:
        """Take the whole reply."""
        self.reply = reply
        self.ended = True
        self._stop_timer()
        self._wake_now()

    def fail(self, failure: LinkError) -> None:
        """The answer will not be complete. Only the first failure counts."""
        if self.ended or self._failure is not None:
            return
        self._failure = failure
        self._stop_timer()
        self._wake_now()

    def _window_over(self) -> None:
        self._late = False
        self._deliver(self._loop.time())

    def _deliver(self, now: float) -> None:
        """Events are here for the reader: they are passed on, or it is woken."""
        taker = self._taker
        if taker is None or self.ended or not self._buffer:
            self._wake_now()
            return
        self._read_at = now
        try:
            goes_on = taker(self._buffer.take())
        except Exception as error:  # noqa: BLE001  it is this stream's trouble, and the channel's reader is not to hear of it
            _log.exception("stream.not_passed_on", stream=self.number)
            self._owner.cancel(self.number)
            self.fail(BadReply(f"{self._name} sent what could not be passed on: {type(error).__name__}."))
            return
        if not goes_on:
            self._taker = None
            self._wake_now()

    def _wake_now(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- deadlines: one lazy timer, which is moved only to an earlier time and looks at `_due` when it fires ---

    def _arm(self) -> None:
        self._stop_timer()
        self._timer = self._loop.call_at(self._due, self._tick)
        self._timer_at = self._due

    def _tick(self) -> None:
        now = self._loop.time()
        if now < self._due:
            self._arm()
            return
        self._owner.cancel(self.number)
        self.fail(WorkerSilent(f"{self._name} {self._silence(now)}."))

    def _silence(self, now: float) -> str:
        if now >= self._give_up:
            return f"did not finish its reply within {self._deadlines.total} s"
        if not self._begun:
            return f"did not begin to answer within {self._deadlines.first_byte} s"
        return f"fell silent for {self._deadlines.idle} s within its reply"

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
