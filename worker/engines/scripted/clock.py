"""Where the scripted engine's time comes from."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> float:
        """Seconds, from any beginning."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> "Timer":
        """Run the callback after `delay` seconds; 0 is as soon as others had their turn."""


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Take it back."""


class LoopClock:
    """The running event loop's time."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)
