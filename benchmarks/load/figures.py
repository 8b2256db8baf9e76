"""What many measured times are summed up as."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

PERCENTS: Final = (50.0, 99.0, 99.9)


class Percentiles(Struct, frozen=True):
    """Of times, in seconds; `count` says of how many. All are 0 for none."""

    count: int
    p50: float
    p99: float
    p999: float


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that at least so many per cent of the (ordered, not empty) values do not exceed: the nearest rank."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank) - 1, 0)]


def percentiles(values: Iterable[float]) -> Percentiles:
    """The percentiles of some times."""
    ordered = sorted(values)
    if not ordered:
        return Percentiles(0, 0.0, 0.0, 0.0)
    p50, p99, p999 = (percentile(ordered, percent) for percent in PERCENTS)
    return Percentiles(len(ordered), p50, p99, p999)


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def spread(values: Iterable[float]) -> float:
    """The largest of positive values, by the smallest: how far repetitions of one measurement are apart."""
    ordered = sorted(values)
    return ordered[-1] / ordered[0] if ordered[0] > 0 else float("inf")


class Gaps:
    """Times per event after the first: an arrival of several events counts once for each, with its share of the time."""

    def __init__(self) -> None:
        self.values = array("d")

    def arrived(self, seconds: float, events: int) -> None:
        """So many events came together, so long after those before."""
        self.values.extend([seconds / events] * events)
