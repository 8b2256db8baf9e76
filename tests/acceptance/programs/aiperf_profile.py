"""aiperf: a short profile over streams with prompts of its own; no request of it may fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.acceptance.programs.gguf_tokenizer import write_tokenizer

REQUESTS = 6


def main() -> None:
    """Raises if it fails, or reports a request that did."""
    folder = Path.cwd() / "tokenizer"
    folder.mkdir()
    write_tokenizer(os.environ["ACCEPTANCE_GGUF"], folder)
    ended = subprocess.run(
        [
            str(Path(sys.executable).with_name("aiperf")),
            *("profile", "--model", os.environ["ACCEPTANCE_MODEL"], "--url", os.environ["ACCEPTANCE_URL"]),
            *("--endpoint-type", "chat", "--streaming", "--tokenizer", str(folder)),
            *("--request-count", str(REQUESTS), "--concurrency", "2", "--ui", "none"),
            *(
                "--synthetic-input-tokens-mean",
                "24",
                "--output-tokens-mean",
                "8",
                "--output-artifact-dir",
                str(Path.cwd() / "out"),
            ),
        ],
        # Told to be offline, it takes the folder for a name on the hub.
        env={name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:]
    report = json.loads(next((Path.cwd() / "out").rglob("*aiperf.json")).read_text())
    assert report["request_count"]["avg"] == REQUESTS, report
    assert not report.get("error_summary"), report["error_summary"]


if __name__ == "__main__":
    main()
