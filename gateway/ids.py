"""Ids: of requests, and of disaggregated requests as stock workers expect them."""

import time
from collections.abc import Callable
from secrets import randbelow, token_hex
from typing import Final

_LOWEST = 1 << 40
_HIGHEST = (1 << 63) - 1


_DRAWN_AT_ONCE: Final = 256


class RequestIds:
    """Ids that nobody can guess: 128 random bits each as 32 hex digits, which the system is asked for many at a time."""

    def __init__(self) -> None:
        self._drawn: list[str] = []

    def next(self) -> str:
        """A new id."""
        if not self._drawn:
            digits = token_hex(16 * _DRAWN_AT_ONCE)
            self._drawn = [digits[start : start + 32] for start in range(0, len(digits), 32)]
        return self._drawn.pop()


class DisaggregatedIds:
    """Mints ids that are unique over gateways, processes and time, at least 2^40 and below 2^63 - 1.

    Layout: 39 bits of monotonic milliseconds, 8 of node, 6 of process, 10 of counter; ids that workers mint for themselves stay
    below 2^40 (trtllm-wire.md 1.4). The counter is 10 bits per millisecond: when it runs out the next millisecond is borrowed.
    Without a `node` one is drawn: in containers all gateways of a machine may have one process id, and share its clock.
    """

    def __init__(self, node: int | None = None, process: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = randbelow(256) if node is None else node % 256
        self._process = process % 64
        self._clock = clock
        self._last = -1

    def next(self) -> int:
        """A new id, larger than the one before it (until the clock's 39 bits wrap, after 17 years)."""
        now = int(self._clock() * 1000) << 10
        self._last = max(now, self._last + 1)
        milliseconds, counter = self._last >> 10, self._last & 0x3FF
        packed = (milliseconds & 0x7FFFFFFFFF) << 24 | self._node << 16 | self._process << 10 | counter
        return packed % (_HIGHEST - _LOWEST) + _LOWEST
