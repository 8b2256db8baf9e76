"""guidellm: a short benchmark of its own making; no request of it may fail."""

import json
import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Raises if it fails, or reports a request that did."""
    prompts = Path.cwd() / "prompts.txt"
    prompts.write_text("".join(f"Tell me something about the number {number}.\n" for number in range(8)))
    ended = subprocess.run(
        [
            str(Path(sys.executable).with_name("guidellm")),
            *("benchmark", "run", "--target", os.environ["ACCEPTANCE_URL"], "--model", os.environ["ACCEPTANCE_MODEL"]),
            *("--profile", "concurrent", "--rate", "2", "--max-requests", "6", "--data", str(prompts)),
            *("--processor", "none", "--outputs", "json", "--output-dir", str(Path.cwd())),
        ],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-1500:] + ended.stderr[-1500:]
    report = next(path for path in Path.cwd().glob("*.json"))
    made = json.loads(report.read_text())["benchmarks"][0]
    assert made["metrics"]["request_totals"]["errored"] == 0, made["metrics"]["request_totals"]


if __name__ == "__main__":
    main()
