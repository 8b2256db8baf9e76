"""A question: what is measured for it, and the targets its answer is held to."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from benchmarks.load.figures import median, spread
from benchmarks.load.plan import Measured
from benchmarks.setting import Setting

UNSTABLE: Final = 1.3
"""A floor whose rounds differ by more than this is reported, not used."""

Results = Mapping[str, Sequence[Measured]]
"""By label, the rounds that could be measured; a label whose contender is missing is not in it."""
Figure = Callable[[Measured], float]


def per_request(measured: Measured) -> float:
    """Processor time of the server per request or stream, in microseconds."""
    return measured.per_request


def per_event(measured: Measured) -> float:
    """Processor time of the server per event of a stream, in microseconds."""
    return measured.cpu / max(measured.events, 1) * 1e6


class Verdict(Struct, frozen=True):
    """One target as it turned out: `met` is None where that cannot be said, and `note` says why."""

    said: str
    value: float | None
    at_most: float
    met: bool | None
    note: str = ""


Target = Callable[[Results], Verdict]


class Question(Struct, frozen=True, kw_only=True):
    """`settings` by label, ours first. `figure` is what the table shows of each, in `unit`."""

    name: str
    title: str
    settings: dict[str, Setting]
    targets: tuple[Target, ...]
    figure: Figure = per_request
    unit: str = "us"


def middle(results: Results, label: str, figure: Figure) -> float | None:
    """The median over the rounds, or None if there is no round."""
    rounds = results.get(label)
    return median(figure(measured) for measured in rounds) if rounds else None


def failed(results: Results, *labels: str) -> str:
    """Why figures of these say nothing: which of them had requests that failed; empty if none had."""
    return ", ".join(
        f"requests to {label} failed"
        for label in labels
        if any(measured.failures for measured in results.get(label, ()))
    )


def ratio(ours: str, floor: str, at_most: float, figure: Figure = per_request) -> Target:
    """Ours divided by a floor, both as medians."""

    def judge(results: Results) -> Verdict:
        said = f"{at_most:g} x {floor}"
        own, other = middle(results, ours, figure), middle(results, floor, figure)
        if own is None or not other:
            return Verdict(said, None, at_most, None, f"no {floor if own is not None else ours}")
        value = own / other
        if why := failed(results, ours, floor):
            return Verdict(said, value, at_most, None, why)
        apart = spread(figure(measured) for measured in results[floor])
        if apart > UNSTABLE:
            return Verdict(said, value, at_most, None, f"{floor} unstable: rounds differ by {apart:.2f}")
        return Verdict(said, value, at_most, value <= at_most)

    return judge


def added(ours: str, floor: str, at_most: float, figure: Figure, said: str) -> Target:
    """Ours less a floor, both as medians."""

    def judge(results: Results) -> Verdict:
        own, other = middle(results, ours, figure), middle(results, floor, figure)
        if own is None or other is None:
            return Verdict(said, None, at_most, None, f"no {floor if own is not None else ours}")
        if why := failed(results, ours, floor):
            return Verdict(said, own - other, at_most, None, why)
        return Verdict(said, own - other, at_most, own - other <= at_most)

    return judge


def below(ours: str, at_most: float, figure: Figure, said: str) -> Target:
    """Ours by itself, as a median."""

    def judge(results: Results) -> Verdict:
        own = middle(results, ours, figure)
        if own is None:
            return Verdict(said, None, at_most, None, f"no {ours}")
        if why := failed(results, ours):
            return Verdict(said, own, at_most, None, why)
        return Verdict(said, own, at_most, own <= at_most)

    return judge
