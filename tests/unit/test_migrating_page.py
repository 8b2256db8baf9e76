"""docs/migrating.md promises nothing that no test holds."""

import ast
import re
from pathlib import Path

import pytest

from gateway.cli import settings_parser

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migrating.md").read_text()
CLAIMS = [" ".join(claim.split()) for claim in re.findall(r"^\* (.+?)(?=\n\*|\n\n|\Z)", PAGE, re.DOTALL | re.MULTILINE)]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim[:40])
def test_every_claim_names_a_test_that_exists(claim: str) -> None:
    """Each line ends with a file of tests and a function in it."""
    named = re.search(r"`(\S+\.py)::(\w+)`$", claim)
    assert named is not None, claim
    tree = ast.parse((ROOT / "tests" / named[1]).read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}

    assert named[2] in functions


def test_every_flag_is_one() -> None:
    """The flags on the page are the gateway's."""
    known = {name for argument in settings_parser().assemble_argument_collection() for name in argument.names}

    assert set(re.findall(r"--[a-z-]+", PAGE)) - {"--help"} <= known


def test_it_takes_three_commands() -> None:
    """That is the promise."""
    assert len(re.findall(r"^\$ ", PAGE, re.MULTILINE)) == 3
