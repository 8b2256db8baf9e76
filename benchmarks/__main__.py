"""`python -m benchmarks [NAME...]`: asks the named questions, or all; prints the table, and writes benchmarks/results/."""

import argparse
import sys
from pathlib import Path
from typing import Final

from benchmarks.contenders import CONTENDERS
from benchmarks.question import Question, Results
from benchmarks.questions import QUESTIONS
from benchmarks.record import record
from benchmarks.rounds import answer, missing, tiny
from benchmarks.table import lines

ROUNDS: Final = 3


def main(arguments: list[str] | None = None) -> int:
    """0 if every question could be asked and no request failed, 1 otherwise; targets that are not met do not change it."""
    options = _options(arguments)
    names = options.name or [question.name for question in QUESTIONS]
    questions = [question for question in QUESTIONS if question.name in names]
    if options.smoke:
        questions = [tiny(question) for question in questions]
    for name, install in missing(questions).items():
        print(f"{name} is not installed here and is left out; to have it: {install}")
    answers: dict[str, Results] = {}
    for question in questions:
        print(f"{question.name}:", flush=True)
        answers[question.name] = answer(question, 1 if options.smoke else options.rounds, tell=_tell)
    print()
    for question in questions:
        print("\n".join(lines(question, answers[question.name])), "\n")
    if not options.smoke:
        print(f"Written to {write(questions, answers, ' '.join(sys.argv[1:]))}.")
    return 0 if _nothing_failed(questions, answers) else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Measure packrelay beside other servers.")
    parser.add_argument("name", nargs="*", choices=[[], *(question.name for question in QUESTIONS)], default=[])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="interleaved rounds (3)")
    parser.add_argument("--smoke", action="store_true", help="one tiny round: does everything work?")
    return parser.parse_args(arguments)


def _tell(line: str) -> None:
    print(line, flush=True)


def _nothing_failed(questions: list[Question], answers: dict[str, Results]) -> bool:
    absent = missing(questions)
    whole = all(
        label in answers[question.name]
        for question in questions
        for label, setting in question.settings.items()
        if setting.contender not in absent
    )
    return whole and not any(
        measured.failures for results in answers.values() for rounds in results.values() for measured in rounds
    )


def write(questions: list[Question], answers: dict[str, Results], command: str) -> Path:
    """Keep everything measured, with what is needed to know what it was; answers where."""
    verdicts = {
        question.name: [target(answers[question.name]) for target in question.targets] for question in questions
    }
    versions = {name: contender.version() for name, contender in CONTENDERS.items() if contender.found()}
    return record(f"python -m benchmarks {command}".strip(), versions, {"verdicts": verdicts, "measured": answers})


if __name__ == "__main__":
    sys.exit(main())
