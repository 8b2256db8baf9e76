"""Rules of this house that no linter of others' knows."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FUNCTION_LINES = 60
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(*folders: str) -> list[Path]:
    """Our own modules in these folders; generated ones are not ours."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in found if path.parent.name != "pb")


def functions(path: Path) -> Iterator[Function]:
    """All functions of a module, nested ones included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function):
            yield node


def name_of(path: Path) -> str:
    """A path as a test's name shows it."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", sources("tests"), ids=name_of)
def test_every_test_states_a_fact(path: Path) -> None:
    """Each test function has a docstring that is a sentence."""
    silent = [
        function.name
        for function in functions(path)
        if function.name.startswith("test_") and not (ast.get_docstring(function) or "").endswith((".", "…"))
    ]

    assert silent == []


@pytest.mark.parametrize("path", sources("schemas", "worker", "gateway", "tests", "tools"), ids=name_of)
def test_functions_are_short(path: Path) -> None:
    """No function is longer than 60 lines."""
    lengths = {function.name: (function.end_lineno or 0) - function.lineno + 1 for function in functions(path)}

    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


def test_modules_are_named_by_a_noun() -> None:
    """No module is a drawer for whatever does not fit elsewhere."""
    drawers = [path for path in sources("schemas", "worker", "gateway", "tests", "tools") if path.stem in EMPTY_NAMES]

    assert drawers == []
