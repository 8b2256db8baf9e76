"""Several processes on one port: how connections spread, what a lost process costs, and what a scrape says."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import IO

from gateway.server import listen_together
from gateway.siblings import added

COUNTED = b"""# HELP x_total Counted.
# TYPE x_total counter
x_total{a="1"} 2.0
"""
BOTH = b"""# HELP x_total Counted.
# TYPE x_total counter
x_total{a="1"} 3.0
x_total{a="2"} 1.0
# HELP packrelay_gateway_worker_up Up.
# TYPE packrelay_gateway_worker_up gauge
packrelay_gateway_worker_up{worker="0"} 1.0
# HELP packrelay_gateway_worker_breaker_open Open.
# TYPE packrelay_gateway_worker_breaker_open gauge
packrelay_gateway_worker_breaker_open{worker="0"} 1.0
"""


def test_connections_spread_over_the_processes() -> None:
    """Of 400 connections to one port no process gets more than three in five."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(closing(listener)) for listener in listen_together("127.0.0.1", 0, 2)]
        address = listeners[0].getsockname()
        for _ in range(400):
            stack.enter_context(closing(socket.create_connection(address)))
        accepted = [_accepted(listener) for listener in listeners]

    assert sum(accepted) == 400
    assert max(accepted) <= 240


def _accepted(listener: socket.socket) -> int:
    """How many connections wait in a listener."""
    listener.setblocking(False)
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def test_pages_are_added() -> None:
    """Counters are summed by name and labels; what is not a sum is taken once."""
    total = added([COUNTED, BOTH, BOTH]).decode().splitlines()

    assert 'x_total{a="1"} 8.0' in total
    assert 'x_total{a="2"} 2.0' in total
    assert 'packrelay_gateway_worker_up{worker="0"} 1.0' in total
    assert 'packrelay_gateway_worker_breaker_open{worker="0"} 1.0' in total
    assert total.count("# HELP x_total Counted.") == 1


def status_of(case: str) -> int:
    """How a supervisor of `tests/unit/supervised.py` ends, which it does long before its process would."""
    command = [sys.executable, "-P", "-m", "tests.unit.supervised", case]
    return subprocess.run(command, timeout=20, check=False).returncode


def test_processes_that_do_not_live_are_given_up() -> None:
    """A process that ends as soon as it starts is tried a few times, and then the gateway fails."""
    assert status_of("short_lived") == 1


def test_a_process_that_does_not_end_is_killed() -> None:
    """A process that is deaf to SIGTERM holds up the end for its grace and a margin, no longer; the exit status says so."""
    assert status_of("deaf") == signal.SIGKILL


def test_a_second_signal_leaves_no_grace() -> None:
    """Told twice, a deaf process is killed after the margin alone."""
    assert status_of("deaf_and_told_twice") == signal.SIGKILL


def test_a_signal_right_after_a_fork_reaches_each_process_once() -> None:
    """The new process is told as well, and the one before it not a second time, which would take its grace away."""
    assert status_of("signalled_after_a_fork") == 0


@contextmanager
def two_processes() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A gateway of two processes, and its port. Its worker is nobody."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "gateway.entry",
        "--processes",
        "2",
        "--port",
        "0",
        "--worker",
        "http://127.0.0.1:1",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as gateway:
        assert gateway.stderr is not None
        try:
            port = _port(gateway.stderr)
            yield gateway, max(port, _port(gateway.stderr))  # Once both of them listen.
        finally:
            gateway.terminate()


def _port(log: IO[str]) -> int:
    """The port of the next process that says it listens."""
    for line in log:
        if found := re.search(r'"port": (\d+), .*"gateway.listening"', line):
            return int(found[1])
    raise AssertionError("The gateway did not listen.")


def ask(port: int, path: str) -> str:
    """A GET on a connection of its own."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def counted(page: str) -> float:
    """How many requests for the version a page says there were."""
    found = re.findall(r'packrelay_gateway_requests_total\{endpoint="version"[^}]*\} (\S+)', page)
    return sum(float(count) for count in found)


def test_metrics_of_all_processes_add_up() -> None:
    """Whichever process is scraped, it says how many requests all of them had."""
    with two_processes() as (_, port):
        for _ in range(40):
            ask(port, "/version")

        assert {counted(ask(port, "/metrics")) for _ in range(4)} == {40.0}


def test_lines_say_which_process_wrote_them() -> None:
    """Of requests as of everything else a process logs: with what it says of a worker, one must know who saw it."""
    with two_processes() as (gateway, port):
        for _ in range(40):
            ask(port, "/version")
        gateway.terminate()
        assert gateway.stderr is not None
        lines = [json.loads(line) for line in gateway.stderr]

    for event in ("request", "gateway.stopped"):
        assert {line.get("process") for line in lines if line["event"] == event} == {0, 1}


def test_a_lost_process_is_replaced() -> None:
    """After one process was killed there are two again, and requests are answered throughout."""
    with two_processes() as (gateway, port):
        children = _children(gateway.pid)
        os.kill(children[0], signal.SIGKILL)
        assert gateway.stderr is not None
        _port(gateway.stderr)

        assert len(_children(gateway.pid)) == 2
        assert ask(port, "/health/live")


def _children(process: int) -> list[int]:
    """The child processes of a process."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_a_signal_ends_all_processes() -> None:
    """SIGTERM to the parent ends every process in order, and the status is 0."""
    with two_processes() as (gateway, _):
        children = _children(gateway.pid)
        gateway.terminate()

        assert gateway.wait(10) == 0
        assert not [child for child in children if Path(f"/proc/{child}").exists()]
