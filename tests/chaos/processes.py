"""Workers and a gateway as processes that a test may kill, stop and start again on the same port."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

READY_SECONDS = 30.0


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """One of our programs, on one port for all its lives."""

    def __init__(self, package: str, log: Path, *flags: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-P", "-m", f"{package}.entry", "--port", str(self.port), *flags]
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None

    def limit_descriptors(self, count: int) -> None:
        """For its next life: it may have so many file descriptors, and no more."""
        self._command = ["bash", "-c", f'ulimit -n {count} && exec "$@"', "bash", *self._command]

    @property
    def resident_bytes(self) -> int:
        """The memory it takes up now."""
        return int(self._proc("statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def descriptors(self) -> int:
        """How many file descriptors it has open."""
        return len(list(self._proc("fd").iterdir()))

    def _proc(self, name: str) -> Path:
        assert self._child is not None
        return Path("/proc") / str(self._child.pid) / name

    def add_flags(self, *flags: str) -> None:
        """For its next life: what depends on its port."""
        self._command += flags

    async def start(self) -> None:
        """Start it, and wait until it answers its health check."""
        self.spawn()
        await self.until_healthy()

    async def until_healthy(self) -> None:
        """Wait until it answers its health check."""
        async with asyncio.timeout(READY_SECONDS):
            while not await asyncio.to_thread(self._healthy):
                assert self.is_running(), self._log.read_text()
                await asyncio.sleep(0.02)  # Another process is ready when it says so, and it says so only when asked.

    def spawn(self) -> None:
        """Start it, ready or not."""
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(self._command, stdout=log, stderr=log)

    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._child is not None and self._child.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._child is not None
        self._child.send_signal(number)

    def kill(self) -> None:
        """Pull the plug."""
        self.send(signal.SIGKILL)
        assert self._child is not None
        self._child.wait()

    def wait(self, seconds: float) -> int:
        """Its exit status, once it has ended by itself."""
        assert self._child is not None
        return self._child.wait(seconds)

    def end(self) -> None:
        """Whatever state it is in, it is gone afterwards."""
        if self._child is not None and self._child.poll() is None:
            os.kill(self._child.pid, signal.SIGCONT)
            self.kill()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples, of those with these labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as reply:  # noqa: S310 - our own loopback URL
            lines = reply.read().decode().splitlines()
        assert any(line.startswith(f"# TYPE {name} ") for line in lines), f"no metric {name}"
        samples = [line for line in lines if re.match(rf"{name}(\{{| )", line)]
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(float(line.rsplit(" ", 1)[1]) for line in samples if all(label in line for label in wanted))

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as reply:  # noqa: S310 - our own loopback URL
                return bool(reply.status == 200)
        except OSError:
            return False


class Fleet:
    """One context worker, one generation worker, one gateway, which speaks to them over the given link."""

    def __init__(
        self, log: Path, *gateway_flags: str, link: str = "http", grace: str = "5", worker_flags: Sequence[str] = ()
    ) -> None:
        self.context = worker_process(log, "context", link, worker_flags)
        self.generation = worker_process(log, "generation", link, worker_flags)
        legs = ("--context-worker", self.context.url, "--generation-worker", self.generation.url, "--link", link)
        self.gateway = Process("gateway", log, *legs, "--internal-key", "chaos", "--grace", grace, *gateway_flags)

    @property
    def all(self) -> list[Process]:
        """Everything there is, workers first."""
        return [self.context, self.generation, self.gateway]


def worker_process(log: Path, role: str, link: str, more: Sequence[str] = ()) -> Process:
    """A worker to be reached over the link; with the scripted engine, unless `more` names another."""
    engine = () if "--engine" in more else ("--engine", "scripted")
    channel = ("--grpc-port", str(free_port())) if link == "grpc" else ()
    flags = (*engine, "--internal-key", "chaos", "--grace", "5", "--role", role)
    return Process("worker", log, *flags, *channel, *more)


@contextlib.asynccontextmanager
async def running(
    log: Path,
    *gateway_flags: str,
    link: str = "http",
    grace: str = "5",
    worker_flags: Sequence[str] = (),
    gateway_descriptors: int | None = None,
) -> AsyncIterator[Fleet]:
    """A fleet that runs, and is gone when the block is left."""
    fleet = Fleet(log, *gateway_flags, link=link, grace=grace, worker_flags=worker_flags)
    if gateway_descriptors is not None:
        fleet.gateway.limit_descriptors(gateway_descriptors)
    try:
        await asyncio.gather(fleet.context.start(), fleet.generation.start())
        await fleet.gateway.start()
        yield fleet
    finally:
        for process in fleet.all:
            process.end()
