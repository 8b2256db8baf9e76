"""A breaker per worker: too many failures in a row and it gets no work for a while, then one request to prove itself."""

from collections.abc import Callable
from enum import StrEnum


class BreakerState(StrEnum):
    """Closed lets work through; open does not; half-open lets one request through and waits for its outcome."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Counts outcomes of one worker. Back-pressure and the client's own mistakes are not outcomes: nobody reports them here.

    `threshold` failures in a row open it; after `cooldown` seconds one trial is admitted; a success closes it, a failure opens it
    again. A trial that ends without an outcome (the client went away) is given back with `neutral`.
    """

    def __init__(self, clock: Callable[[], float], threshold: int = 3, cooldown: float = 2.0) -> None:
        self._clock = clock
        self._threshold = threshold
        self._cooldown = cooldown
        self._failures = 0
        self._opened_at: float | None = None
        self._trial = False

    @property
    def state(self) -> BreakerState:
        """Where it stands now."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        cooled = self._clock() - self._opened_at >= self._cooldown
        return BreakerState.HALF_OPEN if cooled else BreakerState.OPEN

    def admits(self) -> bool:
        """Whether a request may be sent now; asks, changes nothing."""
        if self._opened_at is None:
            return True
        state = self.state
        return state is BreakerState.CLOSED or (state is BreakerState.HALF_OPEN and not self._trial)

    def begin(self) -> None:
        """A request is being sent."""
        if self._opened_at is not None:
            self._trial = True

    def success(self) -> None:
        """The worker answered as it should."""
        self._failures = 0
        self._opened_at = None
        self._trial = False

    def failure(self) -> None:
        """The worker failed by its own fault."""
        self._failures += 1
        self._trial = False
        if self._failures >= self._threshold:
            self._opened_at = self._clock()

    def neutral(self) -> None:
        """The request ended in a way that says nothing about the worker."""
        self._trial = False
