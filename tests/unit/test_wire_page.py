"""What docs/wire.md says of limits, versions and new fields is so."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from schemas import codec
from schemas.openai.errors import HTTP_STATUS
from tools.schemas.artefacts import json_schemas
from tools.schemas.catalogue import GENERATED, ROOT
from tools.schemas.changes import declared
from tools.schemas.compat import schemas_of
from tools.schemas.finding import Rule

PAGE = (ROOT / "docs" / "wire.md").read_text()
SCHEMAS = schemas_of(json_schemas())


def section(title: str) -> str:
    """A section's text."""
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def blocks(language: str) -> list[str]:
    """The page's code in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def bounds(schema: Any) -> Iterator[str]:
    """Every range that a schema or a part of it has, as the page writes them."""
    if isinstance(schema, list):
        for part in schema:
            yield from bounds(part)
    if isinstance(schema, dict):
        for least, most in (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems")):
            if most in schema:
                yield f"{schema[least]} to {schema[most]}" if least in schema else f"up to {schema[most]}"
        for part in schema.values():
            yield from bounds(part)


@pytest.mark.parametrize(("limit", "source"), [(row[1], row[2].strip("`")) for row in rows("Limits")])
def test_a_limit_is_what_the_code_says(limit: str, source: str) -> None:
    """Each row of the table is a constant of the codec, or a bound of a field."""
    owner, _, name = source.partition(".")
    said = [str(getattr(codec, name))] if owner == "codec" else list(bounds(SCHEMAS[owner]["properties"][name]))

    assert limit in said


def test_the_rules_are_all_there() -> None:
    """The table lists every rule of the check, and no other."""
    assert [row[0].strip("`") for row in rows("Versions")] == list(Rule)


def test_the_kinds_of_errors_are_all_there() -> None:
    """The table of errors has every kind with its status."""
    pairs = [pair for row in rows("Errors") for pair in (tuple(row[:2]), tuple(row[2:])) if any(pair)]

    assert sorted(pairs) == sorted((kind.value, str(status)) for kind, status in HTTP_STATUS.items())


def test_the_folders_are_there() -> None:
    """What is said to be generated is."""
    named = re.findall(r"`([a-z-]+/|channel\.binpb)`", section("Versions"))

    assert len(named) == 5
    assert [name for name in named[1:] if not (GENERATED / name).exists()] == []


@pytest.mark.parametrize("code", blocks("python"))
def test_an_example_in_python_runs(code: str) -> None:
    """The page's Python does what its comments say."""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("text", blocks("toml"))
def test_an_example_of_a_declaration_is_read(text: str) -> None:
    """The page's declaration is one."""
    (change,) = declared(text.encode())

    assert change.type in SCHEMAS
    assert change.field in SCHEMAS[change.type]["properties"]
