"""Ctrl-C under make, on a real terminal."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
CTRL_C = b"\x03"

# Ends with status 0 when it is interrupted, as packrelay-up does.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
print("running", flush=True)
signal.pause()
"""


@contextmanager
def make_on_a_terminal(folder: Path, recipe: str) -> Iterator[tuple[int, int]]:
    """Run make with this recipe as the foreground job of a new terminal: its process id, and our end of the terminal."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    (folder / "Makefile").write_text(f"all:\n\t@exec {recipe} {sys.executable} {program}\n")
    child, terminal = pty.fork()
    if child == 0:
        os.execvp("make", ["make", "-C", str(folder)])
    try:
        yield child, terminal
    finally:
        os.close(terminal)


def read_until(terminal: int, words: bytes) -> None:
    """Read what the terminal shows until these words."""
    shown = b""
    while words not in shown:
        shown += os.read(terminal, 1024)


def test_interrupt_on_the_terminal_spares_make(tmp_path: Path) -> None:
    """A Ctrl-C reaches the command alone, so make ends with the command's status."""
    with make_on_a_terminal(tmp_path, f"{sys.executable} {ROOT}/tools/foreground.py") as (make, terminal):
        read_until(terminal, b"running")
        os.write(terminal, CTRL_C)
        _, status = os.waitpid(make, 0)

    assert os.waitstatus_to_exitcode(status) == 0


def test_signal_to_the_group_is_forwarded(tmp_path: Path) -> None:
    """An interrupt sent to make's process group reaches the command as well; make then dies of it, as it must."""
    with make_on_a_terminal(tmp_path, f"{sys.executable} {ROOT}/tools/foreground.py") as (make, terminal):
        read_until(terminal, b"running")
        os.killpg(make, signal.SIGINT)
        _, status = os.waitpid(make, 0)

    assert os.waitstatus_to_exitcode(status) == -signal.SIGINT


def test_without_a_terminal_the_command_just_runs() -> None:
    """Where there is no terminal the command takes the place of the wrapper, and its status is the answer."""
    command = [sys.executable, str(ROOT / "tools" / "foreground.py"), "sh", "-c", "exit 7"]
    ended = subprocess.run(command, start_new_session=True, check=False)

    assert ended.returncode == 7
