"""How many further attempts all requests of this gateway may make together: so that failing workers are not buried in retries."""

from collections.abc import Callable
from typing import Final

LARGEST_SAVING: Final = 10.0
"""Further attempts that may be made at once, after a quiet time."""
PER_SECOND: Final = 1.0
"""Further attempts that are always possible, so that a gateway with few requests may retry too."""


class RetryBudget:
    """A bucket of further attempts: each request puts `fraction` of one in, time puts in `PER_SECOND`, each attempt takes one out.

    So further attempts are at most `fraction` of the recent requests, one a second, and `LARGEST_SAVING` at the start.
    `refused` counts those that were not made.
    """

    def __init__(self, fraction: float, clock: Callable[[], float]) -> None:
        self._fraction = fraction
        self._clock = clock
        self._saved = LARGEST_SAVING
        self._counted_at = clock()
        self.refused = 0

    def request_came(self) -> None:
        """A request makes its first attempt."""
        self._saved = min(self._saved + self._fraction, LARGEST_SAVING)

    def take(self) -> bool:
        """Whether one more attempt may be made; it counts as made if so."""
        now = self._clock()
        self._saved = min(self._saved + (now - self._counted_at) * PER_SECOND, LARGEST_SAVING)
        self._counted_at = now
        if self._saved < 1.0:
            self.refused += 1
            return False
        self._saved -= 1.0
        return True
