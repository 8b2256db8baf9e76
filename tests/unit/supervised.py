"""A supervisor of processes that misbehave, by itself: `python -m tests.unit.supervised CASE` answers its exit status.

Not in the tests' own process: a fork of one that has threads (gRPC's, those of an event loop) may find a lock held for ever.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Final

from gateway import supervisor
from gateway.supervisor import Supervisor


class Life:
    """What a process that must not end by itself waits for: that its supervisor is gone."""

    def __init__(self) -> None:
        self._over, self._held = os.pipe()

    def outlive(self) -> int:
        """In a process of the supervisor's: wait for its end. Whoever holds the other end of a pipe is alive."""
        os.close(self._held)
        os.read(self._over, 1)
        return 0


def short_lived() -> int:
    """Its process ends as soon as it starts."""
    return Supervisor(1, lambda _index: 3, grace=1.0).serve()


def deaf() -> int:
    """Its process does not hear the SIGTERM that it has sent to all."""
    life = Life()

    def run(_index: int) -> int:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(os.getppid(), signal.SIGTERM)
        return life.outlive()

    return Supervisor(1, run, grace=0.1).serve()


def deaf_and_told_twice() -> int:
    """Its process has a long grace, does not use it, and sends a second SIGTERM."""
    life = Life()

    def run(_index: int) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        os.kill(os.getppid(), signal.SIGTERM)
        signal.sigwait([signal.SIGTERM])  # Two at once would be one.
        os.kill(os.getppid(), signal.SIGTERM)
        return life.outlive()

    return Supervisor(1, run, grace=25.0).serve()


def signalled_after_a_fork() -> int:
    """It gets SIGTERM when its second process was made; each of the two fails if it is told twice."""
    ready, told = os.pipe()
    fork = os.fork
    forks: list[int] = []

    def fork_and_signal() -> int:
        process = fork()
        forks.append(process)
        if process and len(forks) == 2:
            os.read(ready, 1)  # The first process waits for its signal.
            os.kill(os.getpid(), signal.SIGTERM)
        return process

    def counting(_index: int) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        os.write(told, b"!")
        signal.sigwait([signal.SIGTERM])
        return 0 if signal.sigtimedwait([signal.SIGTERM], 0.2) is None else 7

    os.fork = fork_and_signal
    return Supervisor(2, counting, grace=0.0).serve()


CASES: Final[dict[str, tuple[Callable[[], int], float]]] = {
    "short_lived": (short_lived, supervisor.MARGIN_SECONDS),
    "deaf": (deaf, 0.1),
    "deaf_and_told_twice": (deaf_and_told_twice, 0.1),
    "signalled_after_a_fork": (signalled_after_a_fork, supervisor.MARGIN_SECONDS),
}
"""By name, with the margin (seconds) that its supervisor has."""


if __name__ == "__main__":
    case, margin = CASES[sys.argv[1]]
    supervisor.PAUSE_SECONDS, supervisor.MARGIN_SECONDS = 0.01, margin  # type: ignore[misc]  # shorter, for the test
    sys.exit(case())
