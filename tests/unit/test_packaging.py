"""What is shipped: one wheel with three packages, and a README that fits."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"schemas", "worker", "gateway"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The paths in the wheel that this checkout builds."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    with ZipFile(built) as archive:
        return archive.namelist()


def test_wheel_has_three_top_level_names(wheel: list[str]) -> None:
    """Beside its metadata the wheel brings exactly `schemas`, `worker` and `gateway`."""
    top = {path.partition("/")[0] for path in wheel}

    assert {name for name in top if not name.endswith(".dist-info")} == PACKAGES


def test_wheel_is_typed(wheel: list[str]) -> None:
    """Each package tells type checkers that it is typed."""
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wheel)


def test_wheel_carries_its_licence(wheel: list[str]) -> None:
    """The licence travels with the code."""
    assert any(path.endswith(".dist-info/licenses/LICENSE") for path in wheel)


def test_core_needs_msgspec_only() -> None:
    """Without an extra, packrelay depends on msgspec and nothing else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert [requirement.partition(">=")[0] for requirement in project["dependencies"]] == ["msgspec"]


def test_readme_fits() -> None:
    """The README has at most 150 lines, and its first screen has the command that runs."""
    lines = (ROOT / "README.md").read_text().splitlines()

    assert len(lines) <= 150
    assert any("make serve" in line for line in lines[:25])


def name_of(path: Path) -> str:
    """A path as a test's name shows it."""
    return str(path.relative_to(ROOT))


def compiled() -> dict[str, list[Path]]:
    """The modules that `make wheel` compiles, by the pattern that names them."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    patterns = build["targets"]["wheel"]["hooks"]["mypyc"]["include"]
    return {pattern: sorted(ROOT.glob(pattern.removeprefix("/"))) for pattern in patterns}


@pytest.mark.parametrize("path", [path for paths in compiled().values() for path in paths], ids=name_of)
def test_compiled_modules_keep_out_what_the_compiler_gets_wrong(path: Path) -> None:
    """No type of msgspec is made in one: its options would be overlooked, and a Raw be taken for bytes."""
    tree = ast.parse(path.read_text())
    bases = {ast.unparse(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases}
    calls = {ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call)}

    assert not {base for base in bases if base.endswith("Struct")}
    assert not {"Raw", "defstruct"} & calls


def test_every_compiled_module_is_there() -> None:
    """None was renamed and forgotten."""
    assert [pattern for pattern, paths in compiled().items() if not paths] == []
