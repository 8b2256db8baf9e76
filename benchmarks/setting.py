"""One measurement: fresh processes for workers, server and load, each on its core, and nothing left afterwards."""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from benchmarks.bodies import small
from benchmarks.contenders import CONTENDERS, DIRECT, ROOT
from benchmarks.load.plan import Load, Measured

START_SECONDS: Final = 60.0
"""How long a server may take until it answers its first chat."""
PROCESS_SECONDS: Final = 120.0
"""How long a load may take beside its measured time."""


class Failed(Exception):
    """A measurement could not be made; the message says why."""


class Setting(Struct, frozen=True, kw_only=True):
    """What is measured: a contender, its workers (each the options of a stub), and the load. `port` and `watch` are filled in."""

    contender: str
    workers: tuple[tuple[str, ...], ...]
    contexts: tuple[tuple[str, ...], ...] = ()
    load: Load


def cores() -> tuple[int, int]:
    """The core of the server that is measured, and the core of everything else; the same one where there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def measure(setting: Setting) -> Measured:
    """Make one measurement. Raises Failed."""
    ours, others = cores()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        workers = [stack.enter_context(_stub(options, others)) for options in setting.workers]
        contexts = [stack.enter_context(_stub(options, others)) for options in setting.contexts]
        if setting.contender == DIRECT:
            return _load(msgspec.structs.replace(setting.load, port=workers[0]), others)
        port = _free_port()
        command = CONTENDERS[setting.contender].command(port, workers, contexts, folder)
        server = stack.enter_context(_process(command, ours))
        _await_answer(port, server, stream=setting.load.events != 0)
        return _load(msgspec.structs.replace(setting.load, port=port, watch=server.pid), others)


@contextmanager
def _process(command: list[str], core: int, *, piped: bool = False) -> Iterator[subprocess.Popen[str]]:
    pinned = ["taskset", "--cpu-list", str(core), *command]
    out = subprocess.PIPE if piped else subprocess.DEVNULL
    with subprocess.Popen(pinned, cwd=ROOT, stdout=out, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def _stub(options: tuple[str, ...], core: int) -> Iterator[int]:
    with _process([sys.executable, "-m", "benchmarks.stub", *options], core, piped=True) as process:
        line = process.stdout.readline() if process.stdout else ""
        if not line.strip().isdecimal():
            raise Failed("A stub worker did not start.")
        yield int(line)


def _load(load: Load, core: int) -> Measured:
    plan = msgspec.json.encode(load).decode()
    command = ["taskset", "--cpu-list", str(core), sys.executable, "-m", "benchmarks.load", plan]
    limit = PROCESS_SECONDS + load.warm + load.seconds
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)
    if done.returncode:
        raise Failed(f"The load generator failed: {done.stderr.strip().rpartition(chr(10))[2]}")
    return msgspec.json.decode(done.stdout, type=Measured)


def _await_answer(port: int, server: subprocess.Popen[str], *, stream: bool) -> None:
    """Wait until a small chat is answered, or begins to be: then the server knows its workers too."""
    give_up = time.monotonic() + START_SECONDS
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    while time.monotonic() < give_up:
        if server.poll() is not None:
            raise Failed("The server ended by itself.")
        body = small(stream=stream)
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=5) as reply:  # noqa: S310  the same
                reply.read(1)
                return
        except OSError:
            time.sleep(0.1)
    raise Failed(f"The server answered nothing within {START_SECONDS:.0f} s.")


def _free_port() -> int:
    """A free port whose next one is free too (for a server's metrics)."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
