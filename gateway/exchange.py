"""One client request while it is answered: what is known of it, and what may end it early."""

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Self

from starlette.types import Receive, Scope

from gateway.cycle import CYCLE, Cycle
from gateway.relay import Reply

CLIENT_CLOSED_REQUEST = 499
"""The status that stands in logs and metrics for a client that left before it was answered; nobody receives it."""


class ClientGone(Exception):
    """The client closed its connection: nobody is there to be answered."""


class Exchange:
    """A request and its reply. Use it as a context around everything that is done for the request.

    `task` is the one it is entered in, if that is known. Inside, `end` (called by whoever knows that it must not go on) cancels the
    work and raises its cause where the work waits; it is the cause that leaves the context, not the cancellation. Ends once: later
    causes are ignored.
    """

    __slots__ = (
        "_cancelling",
        "_cause",
        "_limit",
        "_of",
        "_task",
        "_watcher",
        "client_request_id",
        "endpoint",
        "headers",
        "method",
        "outcome",
        "reply",
        "request_id",
        "started",
        "stream",
    )

    def __init__(
        self,
        reply: Reply,
        headers: Mapping[bytes, bytes],
        endpoint: str,
        method: str,
        request_id: str,
        task: "asyncio.Task[None] | None" = None,
    ) -> None:
        self._of = task
        self.reply = reply
        self.headers = headers
        """The request's, with lower-case names; of a name that was sent twice, the last."""
        self.endpoint = endpoint
        """From a closed set: `api.ENDPOINTS`."""
        self.method = method
        self.request_id = request_id
        self.client_request_id: str | None = None
        self.started = monotonic()
        self.stream = False
        self.outcome = ""
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._cause: Exception | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._limit: TimeLimit | None = None

    def __enter__(self) -> Self:
        task = self._of or asyncio.current_task()
        if task is None:
            raise RuntimeError("An exchange belongs to a task.")
        self._task = task
        self._cancelling = task.cancelling()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        task, self._task = self._task, None
        if self._limit is not None:
            self._limit.lift(self)
        if self._watcher is not None:
            self._watcher.cancel()
        # The same bookkeeping as asyncio.timeout: somebody else's cancellation of this task stays a cancellation.
        cause, self._cause = self._cause, None
        ended_by_us = cause is not None and task is not None and task.uncancel() <= self._cancelling
        try:
            if ended_by_us and cause is not None and isinstance(error, asyncio.CancelledError):
                raise cause from error
        finally:
            del cause  # Or this frame, the cause and its traceback would hold the request's body until a collection.

    def end(self, cause: Exception) -> None:
        """Stop what is being done, and raise `cause` instead. Does nothing once the work is over, or ended already."""
        if self._task is not None and self._cause is None:
            self._cause = cause
            self._task.cancel()

    def limit(self, limit: "TimeLimit") -> None:
        """End when this limit's time, from now on, is over. Takes the place of the limit before."""
        if self._limit is not None:
            self._limit.lift(self)
        self._limit = limit
        limit.put_on(self)

    def watch(self, scope: Scope, receive: Receive) -> None:
        """From here on end with ClientGone when the client leaves. The body must have been read: `receive` has one reader.

        Our own server says so by itself; behind any other, a task waits for it.
        """
        cycle: Cycle | None = scope.get(CYCLE)
        if cycle is not None:
            cycle.on_leaving(self._client_left)
            return
        self._watcher = asyncio.create_task(self._await_disconnect(receive), name=f"watch-{self.request_id}")

    async def _await_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._client_left()

    def _client_left(self) -> None:
        self.end(ClientGone())


class TimeLimit:
    """Ends exchanges after so many seconds, with `cause()`. One timer serves all that are under the same limit."""

    def __init__(self, seconds: float, cause: Callable[[], Exception]) -> None:
        self._seconds = seconds
        self._cause = cause
        self._due: dict[Exchange, float] = {}  # The earliest first, because all of them get the same time.
        self._timer: asyncio.TimerHandle | None = None

    def put_on(self, exchange: Exchange) -> None:
        """The exchange's time begins."""
        self._due[exchange] = monotonic() + self._seconds
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)

    def lift(self, exchange: Exchange) -> None:
        """The exchange is not under this limit any more."""
        self._due.pop(exchange, None)

    def _look(self) -> None:
        """End what is due, and come back for the next one."""
        self._timer = None
        now = monotonic()
        while self._due:
            exchange, due = next(iter(self._due.items()))
            if due > now:
                self._timer = asyncio.get_running_loop().call_later(due - now, self._look)
                return
            del self._due[exchange]
            exchange.end(self._cause())
