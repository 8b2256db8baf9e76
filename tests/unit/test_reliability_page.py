"""The page of promises names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py::[\w:]+)`", (ROOT / "docs" / "reliability.md").read_text())))


def names_in(path: Path) -> set[str]:
    """The tests of a module: by their names, in a class by both."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}::{method.name}" for method in methods}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


def test_every_promise_names_a_test() -> None:
    """A promise without a test is a hope."""
    promises = re.split(r"\n\* ", (ROOT / "docs" / "reliability.md").read_text())[1:]

    assert [promise.splitlines()[0] for promise in promises if "`tests/" not in promise] == []


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists(name: str) -> None:
    """Where the page says it is."""
    path, _, test = name.partition("::")

    assert test in names_in(ROOT / path)
