"""Run a command as the terminal's foreground job: `python tools/foreground.py COMMAND…`, used by `make serve`.

A Ctrl-C goes to every process of the terminal's foreground group. GNU make is one of them, and once interrupted it dies
of the signal, whatever its recipe answers. So the command gets a group of its own in the foreground, as an interactive
shell would give it; then its exit status is make's. Without a terminal, or in the background, this changes nothing.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType


def main(command: Sequence[str]) -> int:
    terminal = _terminal_in_front()
    if terminal is None:
        os.execvp(command[0], list(command))
    # Taking the terminal back from the background would stop us; and nobody could continue what Ctrl-Z has stopped.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    with subprocess.Popen(command, process_group=0) as child:

        def forward(number: int, _frame: FrameType | None) -> None:
            child.send_signal(number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, forward)
        os.tcsetpgrp(terminal, child.pid)
        status = child.wait()
        os.tcsetpgrp(terminal, os.getpgrp())
    return status if status >= 0 else 128 - status


def _terminal_in_front() -> int | None:
    """The controlling terminal, if there is one and our process group has it."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
        in_front = os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return None
    return terminal if in_front else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
