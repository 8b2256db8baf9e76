"""EleutherAI's lm-eval: choices ranked by the log probabilities of echoed prompts, and text generated until a stop.

Its token ids are the server's, from the model's own tokenizer. Tasks and data are written here: nothing comes from a hub.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.acceptance.programs.gguf_tokenizer import write_tokenizer

QUESTIONS = [
    {"text": "The capital of France is", "choices": [" Paris", " quickly"], "target": 0},
    {"text": "Two and two make", "choices": [" because", " four"], "target": 1},
    {"text": "The sky is", "choices": [" blue", " until"], "target": 0},
    {"text": "Fish live in the", "choices": [" when", " water"], "target": 1},
]
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: text
{rest}
"""
RANKED = """doc_to_choice: choices
doc_to_target: target
metric_list: [{metric: acc}]"""
GENERATED = """doc_to_target: "{{choices[target]}}"
generation_kwargs: {until: ["."], max_gen_toks: 8}
metric_list: [{metric: exact_match}]"""


def evaluated(folder: Path) -> dict[str, Any]:
    """What lm-eval found, task by task. Any: JSON of its own shape."""
    arguments = {
        "model": os.environ["ACCEPTANCE_MODEL"],
        "base_url": f"{os.environ['OPENAI_BASE_URL']}/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(folder),
        "num_concurrent": "2",
        "max_length": "2048",
    }
    ended = subprocess.run(
        [
            str(Path(sys.executable).with_name("lm_eval")),
            *("--model", "local-completions", "--tasks", "ranked,generated", "--include_path", str(folder)),
            *("--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())),
            *("--output_path", str(folder / "out")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:]
    report = next((folder / "out").rglob("results_*.json"))
    results: dict[str, Any] = json.loads(report.read_text())["results"]
    return results


def main() -> None:
    """Raises if it fails, or finds nonsense more likely than sense."""
    folder = Path.cwd() / "evaluation"
    folder.mkdir()
    write_tokenizer(os.environ["ACCEPTANCE_GGUF"], folder)
    data = folder / "questions.jsonl"
    data.write_text("".join(f"{json.dumps(question)}\n" for question in QUESTIONS))
    for name, kind, rest in (("ranked", "multiple_choice", RANKED), ("generated", "generate_until", GENERATED)):
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, kind=kind, data=data, rest=rest))
    results = evaluated(folder)
    assert results["ranked"]["acc,none"] >= 0.75, results
    assert "generated" in results


if __name__ == "__main__":
    main()
