"""How much processor time and memory a process and all its descendants have used, from /proc (Linux)."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def tree(root: int) -> list[int]:
    """The process and all its descendants, now."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                parents.setdefault(int(_fields(int(entry.name))[1]), []).append(int(entry.name))
    found = [root]
    for process in found:
        found.extend(parents.get(process, ()))
    return found


def processor_seconds(processes: list[int]) -> float:
    """User and system time of these processes together, all their threads included, in seconds.

    Read from the scheduler (nanoseconds) where the kernel keeps that, else from the clock ticks of /proc/PID/stat.
    """
    return sum(_seconds(process) for process in processes)


def resident_bytes(processes: list[int]) -> int:
    """Memory these processes hold; pages they share count once for each."""
    total = 0
    for process in processes:
        with suppress(OSError):
            total += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE
    return total


def _seconds(process: int) -> float:
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    except OSError:
        with suppress(OSError):
            fields = _fields(process)
            return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0


def _fields(process: int) -> list[str]:
    """/proc/PID/stat from the third field on: the second, the name, may hold spaces and parentheses."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
