"""Reading fast streams in larger pieces: what each costs is mostly the kernel's, per read and per write, however small.

A stream whose pieces come less than two windows apart is not read again until the window is over; one timer ends the window for all
of a link. The first event of a stream never waits, and slower streams (above 2 ms between events, by default) never notice.
"""

import asyncio
from collections.abc import Callable
from typing import Final

DEFAULT_SECONDS: Final = 0.001
"""Short beside any gap between tokens that a person notices, long beside one read and one write."""


class ReadWindow:
    """One per link. `seconds` is the longest that an event may wait; 0 reads whatever is there at once."""

    def __init__(self, seconds: float = DEFAULT_SECONDS) -> None:
        self.seconds = seconds
        self.fast = 2 * seconds
        """Streams that are read more often than that, in seconds, are fast ones."""
        self._waiting: list[Callable[[], None]] = []

    def is_fast(self, before: float, now: float) -> bool:
        """Whether a stream that was read at these two times is to wait for the end of a window."""
        return now - before < self.fast

    def at_end(self, go_on: Callable[[], None]) -> None:
        """Have `go_on` called at the end of the window, which begins now if none has."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(self.seconds, self._end)
        self._waiting.append(go_on)

    def _end(self) -> None:
        waiting, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        for go_on in waiting:
            try:
                go_on()
            except Exception as error:  # noqa: BLE001  the others wait for the same end
                loop.call_exception_handler({"message": "A stream could not go on.", "exception": error})
