"""Every module imports with what it may need, and with nothing else there."""

import subprocess
import sys
from pathlib import Path

import pytest

IMPORT_EVERYTHING = Path(__file__).with_name("import_everything.py")


def imported(package: str, rule: str, *left_out: str) -> list[str]:
    """The modules of the package, all of which could be imported under the rule of `import_everything`."""
    command = [sys.executable, "-P", str(IMPORT_EVERYTHING), package, rule, *left_out]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_schemas_needs_msgspec_only() -> None:
    """Every module of `schemas`, the generated stubs apart, imports with msgspec as the only library."""
    assert "schemas.codec" in imported("schemas", "=msgspec", "schemas.pb")


def test_gateway_needs_no_worker() -> None:
    """Every module of `gateway` imports where there is no worker, no torch and no TensorRT-LLM."""
    assert "gateway.links.base" in imported("gateway", "worker,torch,tensorrt_llm")


def test_worker_needs_no_gateway() -> None:
    """Every module of `worker` imports where there is no gateway, no torch and no TensorRT-LLM."""
    assert "worker.engines.base" in imported("worker", "gateway,torch,tensorrt_llm")


@pytest.mark.parametrize("package", ["schemas", "gateway", "worker"])
def test_package_itself_imports_nothing(package: str) -> None:
    """Importing one of the three packages imports none of its modules."""
    program = f"import sys, {package}; print([name for name in sys.modules if name.startswith('{package}.')])"

    assert subprocess.check_output([sys.executable, "-P", "-c", program], text=True) == "[]\n"


def test_blocker_blocks() -> None:
    """The check above can fail: under a rule that refuses what a module needs, importing it is an error."""
    command = [sys.executable, "-P", str(IMPORT_EVERYTHING), "schemas", "msgspec"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "msgspec is blocked here" in ended.stderr
