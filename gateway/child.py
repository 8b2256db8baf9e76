"""One process that packrelay-up started: its output, its end, and how it is stopped."""

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Self

TAIL_LINES = 20
MAX_LINE_BYTES = 4096
HURRY_S: Final = 3.0
"""How long a program may take to end when it was told twice."""
KILL_TIMEOUT_S = 5.0


class Child:
    """A running process in a session of its own, so that a Ctrl-C at the terminal reaches only its parent.

    Its standard input is a pipe that stays open as long as we live (see `schemas.origin`); what it writes is passed on to
    our stderr with its name in front, and the last 20 lines are kept.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._output = asyncio.create_task(self._relay_output(), name=f"output of {name}")
        self._end = asyncio.create_task(self._watch(), name=f"end of {name}")

    @classmethod
    async def start(cls, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Start the command. Raises OSError when it cannot be run."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        return cls(name, process)

    @property
    def tail(self) -> Sequence[str]:
        """The last lines the process wrote, oldest first, at most 20."""
        return tuple(self._tail)

    @property
    def is_running(self) -> bool:
        return not self._end.done()

    async def ended(self) -> str:
        """Wait for the end, and say how it came: `exited with status 3`, `was killed by SIGKILL`."""
        return _description(await asyncio.shield(self._end))

    async def stop(self, grace_s: float, hurry: asyncio.Event) -> None:
        """SIGTERM, again when there is a hurry, then SIGKILL when the time is over. Safe to call again, and after the end.

        The second signal has our programs end what they do without waiting for it, and tell their clients so.
        """
        if self._end.done():
            return
        self._process.terminate()
        hurried = asyncio.create_task(hurry.wait(), name="hurry")
        await asyncio.wait({self._end, hurried}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        if hurried.done() and not self._end.done():
            self._process.terminate()
            await asyncio.wait({self._end}, timeout=HURRY_S)
        hurried.cancel()
        if not self._end.done():
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # Its own children belong to its session.
            await asyncio.wait({self._end}, timeout=KILL_TIMEOUT_S)

    async def _watch(self) -> int:
        status = await self._process.wait()
        # A grandchild may hold the pipe open; what the process itself wrote is there already.
        await asyncio.wait({self._output}, timeout=1.0)
        return status

    async def _relay_output(self) -> None:
        pending = b""
        while piece := await _stdout(self._process).read(65536):
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                self._pass_on(line)
            if len(pending) > MAX_LINE_BYTES:
                self._pass_on(pending)
                pending = b""
        if pending:
            self._pass_on(pending)

    def _pass_on(self, line: bytes) -> None:
        text = line[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip()
        self._tail.append(text)
        with suppress(OSError):  # Nobody reads our stderr any more; the child's pipe must be emptied all the same.
            print(f"[{self.name}] {text}", file=sys.stderr, flush=True)


def _stdout(process: asyncio.subprocess.Process) -> asyncio.StreamReader:
    if process.stdout is None:
        raise ValueError("A child is started with its output in a pipe.")
    return process.stdout


def _description(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
