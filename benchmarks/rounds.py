"""Runs questions in interleaved rounds: each round measures every setting once, in fresh processes."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import structs

from benchmarks.contenders import (
    CONTENDERS,
    DIRECT,
    PACKRELAY,
    PACKRELAY_AT_ONCE,
    PACKRELAY_GRPC,
    PACKRELAY_INTERPRETED,
    PACKRELAY_WORKER,
    PYDANTIC_JSON,
    PYDANTIC_MSGPACK,
)
from benchmarks.load.plan import Load, Measured
from benchmarks.question import Question
from benchmarks.setting import Failed, measure

Tell = Callable[[str], None]

_QUICK: Final = frozenset(
    (
        PACKRELAY,
        PACKRELAY_INTERPRETED,
        PACKRELAY_AT_ONCE,
        PACKRELAY_GRPC,
        PACKRELAY_WORKER,
        PYDANTIC_JSON,
        PYDANTIC_MSGPACK,
        DIRECT,
    )
)
"""Contenders that start at once."""


def missing(questions: Sequence[Question]) -> dict[str, str]:
    """Contenders that are asked for and not installed here, and how to install them."""
    asked = {setting.contender for question in questions for setting in question.settings.values()} - {DIRECT}
    return {name: CONTENDERS[name].install for name in sorted(asked) if not CONTENDERS[name].found()}


def answer(question: Question, rounds: int, *, tell: Tell) -> dict[str, list[Measured]]:
    """All rounds of a question, by label; a setting whose contender is missing has none."""
    absent = missing([question])
    settings = {label: setting for label, setting in question.settings.items() if setting.contender not in absent}
    results: dict[str, list[Measured]] = {}
    for number in range(1, rounds + 1):
        for label, setting in settings.items():
            try:
                measured = measure(setting)
            except Failed as failure:
                tell(f"  {question.title}, {label}: {failure}")
                continue
            results.setdefault(label, []).append(measured)
            failures = f", {measured.failures} FAILED" if measured.failures else ""
            tell(f"  round {number}, {label}: {question.figure(measured):.1f} {question.unit}{failures}")
    return results


def tiny(question: Question) -> Question:
    """The question with a load that only shows that everything works; no contender that is slow to start."""
    quick = {
        label: structs.replace(setting, load=_tiny(setting.load))
        for label, setting in question.settings.items()
        if setting.contender in _QUICK
    }
    return structs.replace(question, settings=quick)


def _tiny(load: Load) -> Load:
    return structs.replace(load, connections=min(load.connections, 20), warm=0.1, seconds=0.3)
