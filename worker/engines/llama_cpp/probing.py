"""Constraints, tried in a child process before they are used in this one."""

import asyncio
import os
import select
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock
from typing import Final

import msgspec
import structlog

from worker.engines.base import Constraint, EngineDead, EngineRefused
from worker.engines.llama_cpp.probe import READY, Verdict, frame

START_SECONDS: Final = 60.0
PROBE_SECONDS: Final = 10.0
REMEMBERED: Final = 128
"""Verdicts kept; the least recently used go first."""
_TAKES_TOO_LONG: Final = Verdict(reason="The constraint takes too long to compile.")
_HALF_CHARACTERS: Final = Verdict(reason="The constraint holds half of a character.")
_KILLS: Final = Verdict(reason="The constraint cannot be enforced by this engine.")

_log = structlog.get_logger(__name__)
_verdict = msgspec.msgpack.Decoder(Verdict)


class ProbeFailed(RuntimeError):
    """The child does not start: no constraint's fault."""


def probe_command(path: Path) -> list[str]:
    """What starts the child for a model."""
    return [sys.executable, "-P", "-m", "worker.engines.llama_cpp.probe", str(path)]


class GrammarProbe:
    """Compiles constraints, each within so many seconds.

    The child is started by the first one, and again after one that it did not survive.
    """

    def __init__(self, command: Sequence[str], seconds: float = PROBE_SECONDS) -> None:
        self._command = command
        self._seconds = seconds
        # One thread, so one constraint at a time: a dead child tells which one it was.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="grammar-probe")
        self._lock = Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = Event()
        self._known: OrderedDict[Constraint, Verdict] = OrderedDict()

    async def gbnf(self, constraint: Constraint) -> str:
        """llama.cpp's grammar for a constraint. Raises EngineRefused for one that cannot be enforced."""
        verdict = self._remembered(constraint)
        if verdict is None:
            verdict = await self._judged(constraint)
        if not verdict.gbnf:
            raise EngineRefused(verdict.reason, "response_format")
        return verdict.gbnf

    async def close(self) -> None:
        """End the child; whoever waits for a verdict gets EngineDead. May be called again."""
        self._closed.set()
        with self._lock:
            if self._child is not None:
                self._child.kill()
        # The thread finds its child dead, and what is lined up behind it finds this closed.
        await asyncio.to_thread(self._worker.shutdown)
        self._end()

    async def _judged(self, constraint: Constraint) -> Verdict:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, self._judge, constraint)
        except RuntimeError as error:
            if self._closed.is_set():
                raise EngineDead("The engine is closed.") from error
            raise

    def _remembered(self, constraint: Constraint) -> Verdict | None:
        with self._lock:
            verdict = self._known.get(constraint)
            if verdict is not None:
                self._known.move_to_end(constraint)
            return verdict

    def _remember(self, constraint: Constraint, verdict: Verdict) -> None:
        with self._lock:
            self._known[constraint] = verdict
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    # --- the probe's thread ---

    def _judge(self, constraint: Constraint) -> Verdict:
        verdict = self._remembered(constraint)
        if verdict is not None:
            return verdict
        try:
            request = msgspec.msgpack.encode(constraint)
        except UnicodeEncodeError:
            return _HALF_CHARACTERS
        try:
            reply = _asked(self._running(), request, self._seconds)
        except TimeoutError:
            # Not remembered: perhaps the machine is busy.
            self._end()
            return _TAKES_TOO_LONG
        except (EOFError, BrokenPipeError):
            self._end()
            if self._closed.is_set():
                raise ProbeFailed("The probe was ended.") from None
            _log.warning("constraint.fatal", kind=constraint.kind, length=len(constraint.text))
            reply = msgspec.msgpack.encode(_KILLS)
        verdict = _verdict.decode(reply)
        self._remember(constraint, verdict)
        return verdict

    def _running(self) -> "subprocess.Popen[bytes]":
        """The child, started if there is none, or none that lives."""
        if self._closed.is_set():
            raise ProbeFailed("The engine is closed.")
        child = self._child
        if child is not None and child.poll() is None:
            return child
        self._end()
        child = subprocess.Popen(  # noqa: S603 - our own module
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        with self._lock:
            self._child = child
            if self._closed.is_set():
                child.kill()
        try:
            if _received(child, START_SECONDS) == READY:
                return child
        except (EOFError, TimeoutError) as error:
            self._end()
            raise ProbeFailed("The process that tries constraints does not start.") from error
        raise ProbeFailed("The process that tries constraints speaks nonsense.")

    def _end(self) -> None:
        with self._lock:
            child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def _asked(child: "subprocess.Popen[bytes]", request: bytes, seconds: float) -> bytes:
    if child.stdin is None:
        raise EOFError
    # A child that lives reads at once, and one that died breaks the pipe.
    child.stdin.write(frame(request))
    return _received(child, seconds)


def _received(child: "subprocess.Popen[bytes]", seconds: float) -> bytes:
    """One frame. Raises EOFError if the child dies, TimeoutError if it is silent."""
    deadline = time.monotonic() + seconds
    length = int.from_bytes(_read(child, 4, deadline), "little")
    return _read(child, length, deadline)


def _read(child: "subprocess.Popen[bytes]", count: int, deadline: float) -> bytes:
    if child.stdout is None:
        raise EOFError
    descriptor, data = child.stdout.fileno(), b""
    while len(data) < count:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        part = os.read(descriptor, count - len(data))
        if not part:
            raise EOFError
        data += part
    return data
