"""What the gateway counts. Counting is adding to plain integers; `gateway/scrape.py` makes Prometheus samples of them when asked.

Label values come from closed sets, so the number of series does not depend on what clients send.
"""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final

# A tuple as such would be taken apart by the compiler, item by item.
Bounds = Sequence[float]

# fmt: off
FIRST_TOKEN_BUCKETS: Final[Bounds] = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
TOKEN_GAP_BUCKETS: Final[Bounds] = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0)
DURATION_BUCKETS: Final[Bounds] = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
LAG_BUCKETS: Final[Bounds] = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
# fmt: on

LAG_INTERVAL_SECONDS: Final = 0.1

_CLASSES: Final = {number: f"{number}xx" for number in range(1, 6)}


class Histogram:
    """Counts per bucket; `bounds` are the inclusive upper ends, in seconds, and one bucket more takes the rest."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_each(self, total: float, times: int) -> None:
        """Count so many equal values, of this sum; one where there is none."""
        times = times or 1
        self.counts[bisect_left(self.bounds, total / times)] += times
        self.total += total


class Metrics:
    """Everything counted since the start. `requests` is by (endpoint, status class, outcome); durations are in seconds."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.durations = Histogram(DURATION_BUCKETS)
        self.first_token = Histogram(FIRST_TOKEN_BUCKETS)
        self.token_gaps = Histogram(TOKEN_GAP_BUCKETS)
        self.loop_lag = Histogram(LAG_BUCKETS)
        self.ignored_fields = 0

    def request_ended(self, endpoint: str, status: int, outcome: str) -> None:
        """Count a request: `endpoint` and `outcome` are from closed sets."""
        self.requests[endpoint, _CLASSES.get(status // 100, "other"), outcome] += 1

    async def measure_lag(self) -> None:
        """Measure, for as long as it runs, how late the event loop is; one ticker serves everybody."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + LAG_INTERVAL_SECONDS
            await asyncio.sleep(LAG_INTERVAL_SECONDS)
            self.loop_lag.observe(max(0.0, clock() - due))
