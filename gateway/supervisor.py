"""Several gateway processes on one port, and their parent, which serves nothing.

Each process has a listening socket of its own that shares the port (SO_REUSEPORT): the kernel spreads connections over them. The
parent made the sockets and keeps them, so a process that ends by itself is replaced, and what waits in its socket is not lost.
SIGTERM and SIGINT go on to the processes, a second one too (see gateway/lifecycle.py). One that does not end by itself, within its
grace and a margin, is killed.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from math import inf
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
MARGIN_SECONDS: Final = 15.0
"""What a process may need beyond its grace to end in order: the farewells, its connections, its links."""

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_log = structlog.get_logger(__name__)


class Supervisor:
    """`run` is what process number `index` does, after the fork; what it answers is the process's exit status.

    `grace` is how many seconds a process gives its requests when it is to end.
    """

    def __init__(self, count: int, run: Callable[[int], int], grace: float) -> None:
        self._run = run
        self._grace = grace
        self._running: dict[int, tuple[int, float]] = {}  # By process id: its number, and when it was started.
        self._due: dict[int, float] = dict.fromkeys(
            range(count), 0.0
        )  # Numbers that have no process, and when they get one.
        self._short_lives = 0
        self._stopping = False
        self._kill_at = inf
        self._status = 0

    def serve(self) -> int:
        """Keep the processes running until a signal comes and all of them have ended. Answers the exit status."""
        with self._signals() as woken:
            while self._running or not self._stopping:
                self._start_due()
                if select([woken], [], [], PAUSE_SECONDS)[0]:
                    woken.recv(4096)
                self._reap()
                if monotonic() >= self._kill_at:
                    self._kill()
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
            # A signal waits meanwhile: this one would not be told of it yet, or would take it with the parent's own handler.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            process = os.fork()
            if process == 0:
                os._exit(self._child(index, before))
            self._running[process] = (index, now)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _child(self, index: int, mask: Iterable[int]) -> int:
        """In the new process. A Ctrl-C at the terminal is the parent's to pass on, and there is no life after the parent's."""
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
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
        # Told a second time, a process does not wait for its requests any more.
        grace = 0.0 if self._stopping else self._grace
        self._stopping = True
        self._kill_at = min(self._kill_at, monotonic() + grace + MARGIN_SECONDS)
        _tell(self._running, signal.SIGTERM)

    def _kill(self) -> None:
        """End those that should have ended by now."""
        self._kill_at = inf
        if self._running:
            _log.error("gateway.processes_killed", processes=len(self._running))
        _tell(self._running, signal.SIGKILL)

    def _reap(self) -> None:
        """Take note of what has ended."""
        for process, (index, started) in list(self._running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                del self._running[process]
                self._ended(index, started, os.waitstatus_to_exitcode(status))

    def _ended(self, index: int, started: float, status: int) -> None:
        if self._stopping:
            # One that had nothing of its own against SIGTERM yet had not begun to serve: it ended as it was told.
            self._status = self._status or (0 if status == -signal.SIGTERM else abs(status))
            return
        _log.error("gateway.process_ended", process=index, status=status)
        self._short_lives = self._short_lives + 1 if monotonic() - started < SHORT_LIFE_SECONDS else 0
        self._due[index] = monotonic() + PAUSE_SECONDS
        if self._short_lives >= MAX_SHORT_LIVES:
            self._status = 1
            self._stop()


def _tell(processes: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes, whether or not they are still there."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
