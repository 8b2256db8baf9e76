"""Prefill state kept for a while: by handle, handed out once, bounded in bytes and time."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from msgspec import Struct

from schemas.openai.errors import ErrorKind, ServingError
from worker.handoff import Reason

MAX_WAITING: Final = 4096
"""Fetches that may wait for states at once."""


class Kept(Struct, frozen=True):
    """A state being kept: its description (base64), its bytes, and the request it belongs to."""

    description: str
    data: bytes
    request_id: str


class HandoffStore:
    """States by handle, each handed out once. Bounded in bytes and, each, in seconds; the oldest go first.

    `failed` hears of every state that was dropped unfetched. `clock` counts seconds.
    """

    def __init__(
        self,
        limit_bytes: int,
        seconds: float,
        failed: Callable[[Reason], None] = lambda _reason: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.seconds = seconds
        self.size = 0
        self._limit = limit_bytes
        self._failed = failed
        self._clock = clock
        # All live equally long, so the order of insertion is the order of expiry.
        self._kept: dict[str, tuple[float, Kept]] = {}
        self._waiting: dict[str, asyncio.Future[Kept]] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, handle: str, kept: Kept) -> None:
        """Keep a state, or give it straight to who waits for it. Raises a 503 if it cannot fit at all."""
        waiting = self._waiting.get(handle)
        if waiting is not None and not waiting.done():
            waiting.set_result(kept)
            return
        self.discard(handle)
        self.sweep()
        if len(kept.data) > self._limit:
            self._failed(Reason.FULL)
            message = "The prefill state is larger than this worker may keep."
            raise ServingError(ErrorKind.UNAVAILABLE, message, code="handoff_store_full")
        while self.size + len(kept.data) > self._limit:
            self.discard(next(iter(self._kept)))
            self._failed(Reason.EVICTED)
        self._kept[handle] = (self._clock() + self.seconds, kept)
        self.size += len(kept.data)

    async def take(self, handle: str, wait: float = 0.0) -> Kept | None:
        """The state, which is forgotten here; waits up to `wait` seconds for one to be put. None if there is none."""
        self.sweep()
        kept = self.discard(handle)
        if kept is not None or wait <= 0 or handle in self._waiting or len(self._waiting) >= MAX_WAITING:
            return kept
        waiting: asyncio.Future[Kept] = asyncio.get_running_loop().create_future()
        self._waiting[handle] = waiting
        try:
            async with asyncio.timeout(min(wait, self.seconds)):
                return await waiting
        except TimeoutError:
            return None
        finally:
            del self._waiting[handle]

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request: nobody will come for it."""
        for handle in [handle for handle, (_, kept) in self._kept.items() if kept.request_id == request_id]:
            self.discard(handle)

    def sweep(self) -> None:
        """Drop what has expired."""
        now = self._clock()
        while self._kept and (oldest := next(iter(self._kept.items())))[1][0] <= now:
            self.discard(oldest[0])
            self._failed(Reason.EXPIRED)

    def discard(self, handle: str) -> Kept | None:
        """Forget one state; answers what it was."""
        if handle not in self._kept:
            return None
        _, kept = self._kept.pop(handle)
        self.size -= len(kept.data)
        self._changed.set()
        return kept

    async def until_empty(self) -> None:
        """Return once nothing is kept."""
        while self._kept:
            self._changed.clear()
            await self._changed.wait()
