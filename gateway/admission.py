"""Who gets in: a bounded number of requests at once, a bounded waiting room in front of them, a bounded sum of body bytes.

A permit lives as long as the response it was given for, whatever way that ends.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol, Self

from gateway.limits import Limits
from schemas.openai.errors import ErrorKind, ServingError

RETRY_AFTER_SECONDS = 1.0


class Refusal(StrEnum):
    """Why a request was not let in; also the label of the metric."""

    QUEUE_FULL = "queue_full"
    WAITED_TOO_LONG = "waited_too_long"
    BODY_BYTES = "body_bytes"
    DRAINING = "draining"
    NO_CONNECTIONS = "no_connections"


class Timer(Protocol):
    """What a clock gives for a call it will make later."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class Admission:
    """The door. `in_flight`, `waiting` and `body_bytes` are the state now, `refusals` counts since the start.

    `call_later` is the clock waits are measured by; the running loop's own by default.
    """

    def __init__(self, limits: Limits, call_later: CallLater | None = None) -> None:
        self._limits = limits
        self._call_later = call_later
        self._waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self.in_flight = 0
        self.body_bytes = 0
        self.refusals: Counter[Refusal] = Counter(dict.fromkeys(Refusal, 0))

    @property
    def waiting(self) -> int:
        """How many requests wait for a permit."""
        return len(self._waiters)

    def permit(self) -> "Permit":
        """A permit that stands for nothing yet. Use it as a context: leaving it gives back what it stands for."""
        return Permit(self)

    def refuse(self, reason: Refusal, kind: ErrorKind, message: str) -> ServingError:
        """Count a refusal, and make the error for it."""
        self.refusals[reason] += 1
        return ServingError(kind, message, code=reason.value, retry_after=RETRY_AFTER_SECONDS)

    def reserve(self, size: int) -> None:
        """Take `size` bytes. Raises a 503 when they are too many."""
        if self.body_bytes + size > self._limits.max_bytes:
            message = "The server holds too many large requests at the moment."
            raise self.refuse(Refusal.BODY_BYTES, ErrorKind.UNAVAILABLE, message)
        self.body_bytes += size

    def give_back(self, size: int) -> None:
        """Take `size` bytes no longer."""
        self.body_bytes -= size

    def take_free_place(self) -> bool:
        """Take a place if one is free and nobody waits for it."""
        free = self.in_flight < self._limits.max_in_flight and not self._waiters
        if free:
            self.in_flight += 1
        return free

    async def enter(self) -> None:
        """Take a place, or wait for one in the order of arrival. Raises a 429 when there is no room, or none in time."""
        if self.take_free_place():
            return
        if len(self._waiters) >= self._limits.max_waiting:
            raise self.refuse(Refusal.QUEUE_FULL, ErrorKind.RATE_LIMITED, "Too many requests are waiting already.")
        await self._wait()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[waiter] = None
        call_later = self._call_later or loop.call_later
        timer = call_later(self._limits.max_wait_seconds, lambda: self._expire(waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            # The place may have been given in the same turn of the loop in which the client left: it goes to the next one.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.leave()
            raise
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)

    def _expire(self, waiter: "asyncio.Future[None]") -> None:
        if not waiter.done():
            message = "No place became free in time."
            waiter.set_exception(self.refuse(Refusal.WAITED_TOO_LONG, ErrorKind.RATE_LIMITED, message))
            self._waiters.pop(waiter, None)

    def leave(self) -> None:
        """Give a place back: to the request that has waited longest, if one waits."""
        while self._waiters:
            waiter, _ = self._waiters.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)  # The place changes hands: `in_flight` stays as it is.
                return
        self.in_flight -= 1


class Permit:
    """What one request takes up: the bytes of its body, and a place once `enter` returned."""

    __slots__ = ("_admission", "_bytes", "_entered")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._bytes = 0
        self._entered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def grow(self, size: int) -> None:
        """Stand for `size` more bytes. Raises a 503 when all requests together hold too many."""
        self._admission.reserve(size)
        self._bytes += size

    def try_enter(self) -> bool:
        """Stand for a place if one is free."""
        self._entered = self._admission.take_free_place()
        return self._entered

    async def enter(self) -> None:
        """Stand for a place. Raises a 429 (see `Admission.enter`)."""
        await self._admission.enter()
        self._entered = True

    def release(self) -> None:
        """Give everything back. A second call does nothing."""
        self._admission.give_back(self._bytes)
        self._bytes = 0
        if self._entered:
            self._entered = False
            self._admission.leave()
