"""Several gateway processes on one port, and their parent, which serves nothing.

Each process has a listening socket of its own that shares the port (SO_REUSEPORT): the kernel spreads connections over them. The
parent made the sockets and keeps them, so a process that ends by itself is replaced, and what waits in its socket is not lost.
SIGTERM and SIGINT go on to the processes, a second one too (see gateway/lifecycle.py).
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from select import select
from socket import socket, socketpair
from time import monotonic
from typing import Final

import structlog

SHORT_LIFE_SECONDS: Final = 5.0
MAX_SHORT_LIVES: Final = 5
"""So many ends in a row, each so soon after the start, and the processes are given up."""
PAUSE_SECONDS: Final = 0.5
"""Between the end of a process and its replacement."""

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_log = structlog.get_logger(__name__)


class Supervisor:
    """`run` is what process number `index` does, after the fork; what it answers is the process's exit status."""

    def __init__(self, count: int, run: Callable[[int], int]) -> None:
        self._run = run
        self._running: dict[int, tuple[int, float]] = {}  # By process id: its number, and when it was started.
        self._due: dict[int, float] = dict.fromkeys(
            range(count), 0.0
        )  # Numbers that have no process, and when they get one.
        self._short_lives = 0
        self._stopping = False
        self._status = 0

    def serve(self) -> int:
        """Keep the processes running until a signal comes and all of them have ended. Answers the exit status."""
        with self._signals() as woken:
            while self._running or not self._stopping:
                self._start_due()
                if select([woken], [], [], PAUSE_SECONDS)[0]:
                    woken.recv(4096)
                self._reap()
        return self._status

    @contextmanager
    def _signals(self) -> Iterator[socket]:
        """While it lasts the signals are handled here, and each makes the answered socket readable."""
        woken, waking = socketpair()
        with woken, waking:
            waking.setblocking(False)
            descriptor = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
            before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
            try:
                yield woken
            finally:
                signal.set_wakeup_fd(descriptor)
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._stop()

    def _start_due(self) -> None:
        now = monotonic()
        for index in [index for index, due in self._due.items() if due <= now and not self._stopping]:
            del self._due[index]
            process = os.fork()
            if process == 0:
                os._exit(self._child(index))
            self._running[process] = (index, now)
            if self._stopping:  # The signal came between the fork and the line above: nobody else will tell this one.
                self._stop()

    def _child(self, index: int) -> int:
        """In the new process. A Ctrl-C at the terminal is the parent's to pass on, and there is no life after the parent's."""
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        try:
            return self._run(index)
        except BaseException:  # noqa: BLE001  nothing may go back up into the parent's code
            _log.exception("gateway.process_failed", process=index)
            return 1
        finally:
            sys.stderr.flush()

    def _stop(self) -> None:
        self._stopping = True
        for process in self._running:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)

    def _reap(self) -> None:
        """Take note of what has ended."""
        for process, (index, started) in list(self._running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                del self._running[process]
                self._ended(index, started, os.waitstatus_to_exitcode(status))

    def _ended(self, index: int, started: float, status: int) -> None:
        if self._stopping:
            self._status = self._status or abs(status)
            return
        _log.error("gateway.process_ended", process=index, status=status)
        self._short_lives = self._short_lives + 1 if monotonic() - started < SHORT_LIFE_SECONDS else 0
        self._due[index] = monotonic() + PAUSE_SECONDS
        if self._short_lives >= MAX_SHORT_LIVES:
            self._status = 1
            self._stop()
