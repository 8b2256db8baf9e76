"""A fleet of real processes, started as a user starts it, on free ports."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

READY = re.compile(r"packrelay is ready on (http://\S+)")
WORKER = re.compile(r"starting the (.*worker.*) on (http://\S+)")
START_SECONDS = 120.0
STOP_SECONDS = 40.0


class LocalFleet:
    """A running `packrelay-up`: where its gateway and its workers are."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str, workers: dict[str, str], log: Path) -> None:
        self.process = process
        self._log = log
        self.url = url
        self.workers = workers

    def said(self) -> str:
        """What it and its programs have written."""
        return self._log.read_text()

    def metric(self, base: str, name: str) -> float:
        """The sum of a metric's samples at one process."""
        with urllib.request.urlopen(f"{base}/metrics", timeout=10) as reply:  # noqa: S310 - our own loopback URL
            lines = reply.read().decode().splitlines()
        assert any(line.startswith(f"# TYPE {name} ") for line in lines), f"no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}(\{{| )", line))

    def stop(self) -> int:
        """Ctrl-C, and the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_SECONDS)


@contextmanager
def local_fleet(*flags: str, **settings: str) -> Iterator[LocalFleet]:
    """A fleet with these flags of packrelay-up, and `PACKRELAY_*` variables for its programs, until the block is left."""
    command = [str(Path(sys.executable).with_name("packrelay-up")), "--port", "0", "--worker-port", "0", *flags]
    environment = os.environ | {f"PACKRELAY_{name.upper()}": value for name, value in settings.items()}
    # A file, not a pipe: nobody reads along, and a full pipe would stop the fleet.
    with NamedTemporaryFile("r", prefix="packrelay-fleet-", suffix=".log") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log.fileno(), stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            fleet = _when_ready(process, log)
            yield fleet
            if process.poll() is None:
                assert fleet.stop() == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _when_ready(process: "subprocess.Popen[bytes]", log: IO[str]) -> LocalFleet:
    """Read what it says until it says that it is ready."""
    deadline = time.monotonic() + START_SECONDS
    while not (ready := READY.search(said := Path(log.name).read_text())):
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.05)  # Another process writes the file, and there is nothing to wait on.
    return LocalFleet(process, ready.group(1), dict(WORKER.findall(said)), Path(log.name))


def two_legs(engine: str, *flags: str) -> Sequence[str]:
    """Flags for one context and one generation worker."""
    return ["--engine", engine, *flags]


def one_worker(engine: str, *flags: str) -> Sequence[str]:
    """Flags for one worker that does both legs."""
    return ["--engine", engine, "--workers", "1", *flags]
