"""The public API document, thrown at the server by schemathesis: its examples, the edges of its schemas, and what lies between."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.material import DATA
from tests.contract.specification_hooks import MODEL_VARIABLE
from tests.e2e.local_fleet import local_fleet, one_worker, two_legs

DOCUMENT = DATA / "openapi" / "chat-completions-embeddings.json"
CHECKS = "not_a_server_error,content_type_conformance,response_schema_conformance"
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("flags", [two_legs("scripted"), one_worker("scripted")], ids=["two-legs", "one-worker"])
def test_no_answer_is_outside_the_public_document(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No server error, no wrong content type, no response that its schema does not allow."""
    monkeypatch.setenv("PACKRELAY_ACCESS_LOG", "false")
    with local_fleet(*flags) as fleet:
        ended = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")),
                *("run", str(DOCUMENT), "--url", f"{fleet.url}/v1", "--checks", CHECKS),
                *("--phases", "examples,coverage,fuzzing", "--max-examples", "60", "--seed", "1", "--no-color"),
            ],
            env=os.environ
            | {
                "SCHEMATHESIS_HOOKS": "tests.contract.specification_hooks",
                "PYTHONPATH": str(ROOT),
                MODEL_VARIABLE: "scripted",
            },
            cwd=tmp_path,  # It leaves its findings where it runs.
            capture_output=True,
            text=True,
            check=False,
        )

    assert ended.returncode == 0, ended.stdout
