"""What was measured, kept in benchmarks/results/ with what is needed to know what it was."""

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.contenders import ROOT

RESULTS: Final = Path(__file__).parent / "results"


def record(command: str, versions: Mapping[str, str], found: Mapping[str, Any]) -> Path:
    """Write a file named by the time; answers where. Any: what a benchmark finds is its own."""
    now = datetime.now(UTC)
    document = {
        "when": now.isoformat(timespec="seconds"),
        "command": command,
        "commit": _git("rev-parse", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--", "gateway", "schemas", "worker", "benchmarks")),
        "host": _host(),
        "versions": {"python": platform.python_version(), **versions},
        **found,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{now:%Y%m%dT%H%M%SZ}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    return path


def _host() -> dict[str, Any]:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": models[0].partition(":")[2].strip() if models else platform.machine(),
        "kernel": platform.release(),
        "load_average": os.getloadavg(),
    }


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
