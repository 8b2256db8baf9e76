"""One client request while it is answered: what is known of it, and what may end it early."""

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Self

from starlette.types import Receive

from gateway.relay import Reply

CLIENT_CLOSED_REQUEST = 499
"""The status that stands in logs and metrics for a client that left before it was answered; nobody receives it."""


class ClientGone(Exception):
    """The client closed its connection: nobody is there to be answered."""


class Exchange:
    """A request and its reply. Use it as a context around everything that is done for the request.

    Inside, `end` (called by whoever knows that it must not go on) cancels the work and raises its cause where the work waits; it
    is the cause that leaves the context, not the cancellation. Ends once: later causes are ignored.
    """

    __slots__ = (
        "_cancelling",
        "_cause",
        "_task",
        "_timer",
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
        self, reply: Reply, headers: Mapping[bytes, bytes], endpoint: str, method: str, request_id: str
    ) -> None:
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
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("An exchange belongs to a task.")
        self._task = task
        self._cancelling = task.cancelling()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        # The same bookkeeping as asyncio.timeout: somebody else's cancellation of this task stays a cancellation.
        ended_by_us = self._cause is not None and task is not None and task.uncancel() <= self._cancelling
        if ended_by_us and self._cause is not None and isinstance(error, asyncio.CancelledError):
            raise self._cause from error

    def end(self, cause: Exception) -> None:
        """Stop what is being done, and raise `cause` instead. Does nothing once the work is over, or ended already."""
        if self._task is not None and self._cause is None:
            self._cause = cause
            self._task.cancel()

    def limit(self, seconds: float, cause: Callable[[], Exception]) -> None:
        """End with `cause()` in so many seconds. Takes the place of the limit before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, lambda: self.end(cause()))

    def watch(self, receive: Receive) -> None:
        """From here on end with ClientGone when the client leaves. The body must have been read: `receive` has one reader."""
        self._watcher = asyncio.create_task(self._await_disconnect(receive), name=f"watch-{self.request_id}")

    async def _await_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.end(ClientGone())
