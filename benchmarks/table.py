"""The answers, as a table to read."""

from benchmarks.load.figures import spread
from benchmarks.load.plan import Measured
from benchmarks.question import UNSTABLE, Question, Results, Verdict, middle


def lines(question: Question, results: Results) -> list[str]:
    """One question: what each contender took, then each target."""
    told = [f"{question.title} ({question.unit})"]
    ours = next(iter(question.settings))
    own = middle(results, ours, question.figure)
    for label in question.settings:
        value = middle(results, label, question.figure)
        if value is None:
            told.append(f"  {label:24} -")
            continue
        rounds = results[label]
        rate = median_rate(results, label)
        apart = spread(question.figure(measured) for measured in rounds)
        shown = f"  {label:24} {value:10.1f}   {rate:9.0f}/s   p50 {_ms(results, label, 'p50')}   p99 {_ms(results, label, 'p99')}"
        if own is not None and label != ours and value:
            shown += f"   ours is {own / value:.3f} of it"
        told.append(shown + (f"   (rounds differ by {apart:.2f})" if value and apart > UNSTABLE else ""))
    told.extend(f"    {_said(target(results))}" for target in question.targets)
    return told


def median_rate(results: Results, label: str) -> float:
    """Requests per second, or events per second where no request ended."""
    return middle(results, label, lambda measured: (measured.requests or measured.events) / measured.seconds) or 0.0


def _ms(results: Results, label: str, name: str) -> str:
    def of(measured: Measured) -> float:
        seconds: float = getattr(measured.delay if measured.delay.count else measured.latency, name)
        return seconds * 1e3

    return f"{middle(results, label, of) or 0.0:8.2f} ms"


def _said(verdict: Verdict) -> str:
    word = {True: "met", False: "NOT MET", None: "not judged"}[verdict.met]
    value = "-" if verdict.value is None else f"{verdict.value:.3f}"
    note = f" ({verdict.note})" if verdict.note else ""
    return f"target {verdict.said}: {value}, {word}{note}"
