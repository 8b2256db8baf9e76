"""What a console script checks before it starts."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = {"packrelay-up": "gateway", "packrelay-gateway": "gateway", "packrelay-worker": "worker"}
BIN = Path(sys.executable).parent


@pytest.mark.parametrize("package", ["schemas", "worker", "gateway"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_foreign_package_is_refused_by_path(tmp_path: Path, script: str, package: str) -> None:
    """A script that would import one of our packages from elsewhere names the place and does not start."""
    foreign = tmp_path / package
    foreign.mkdir()
    (foreign / "__init__.py").touch()
    ended = subprocess.run(
        [BIN / script, "--help"], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )

    assert ended.returncode != 0
    assert ended.stdout == ""
    assert str(foreign) in ended.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_missing_extra_is_named(tmp_path: Path, script: str) -> None:
    """A script whose libraries are not installed says which extra brings them."""
    # A module that cannot be found, in front of the real one: what an environment without the extra looks like.
    (tmp_path / "cyclopts.py").write_text("raise ModuleNotFoundError('No module named cyclopts', name='cyclopts')")
    ended = subprocess.run(
        [BIN / script, "--help"], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 2
    assert f"{script} needs the extra `{SCRIPTS[script]}`" in ended.stderr
    assert f"pip install 'packrelay[{SCRIPTS[script]}]'" in ended.stderr


def test_missing_module_of_ours_is_no_missing_extra(tmp_path: Path) -> None:
    """A module of our own that cannot be imported is a fault to be seen, not an extra to be installed."""
    program = "from schemas.origin import start; start('script', extra='gateway', module='gateway.no_such_module')"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert "No module named 'gateway.no_such_module'" in ended.stderr
