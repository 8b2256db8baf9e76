"""Simon Willison's `llm`: a model of its list that speaks the OpenAI API, asked on the command line, streamed and not."""

import os
import subprocess
import sys
from pathlib import Path

MODELS = """- model_id: packrelay
  model_name: {model}
  api_base: "{base}"
"""


def main() -> None:
    """Raises if `llm` fails or says nothing."""
    folder = Path.cwd() / "llm"
    folder.mkdir()
    model, base = os.environ["ACCEPTANCE_MODEL"], os.environ["OPENAI_BASE_URL"]
    (folder / "extra-openai-models.yaml").write_text(MODELS.format(model=model, base=base))
    program = str(Path(sys.executable).with_name("llm"))
    for flags in ([], ["--no-stream"], ["-o", "temperature", "0"]):
        said = subprocess.run(
            [program, "-m", "packrelay", "Say hi.", "-o", "max_tokens", "16", *flags],
            env=os.environ | {"LLM_USER_PATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert said.returncode == 0, said.stderr
        assert said.stdout.strip()


if __name__ == "__main__":
    main()
