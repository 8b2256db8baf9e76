"""A client in another language, made from proto/channel.proto and msgpack alone, against a real worker."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.processes import Process, free_port

FOLDER = Path(__file__).parents[1] / "node"
INSTALLED = FOLDER / "node_modules" / ".package-lock.json"
SECONDS = 120.0

pytestmark = [
    pytest.mark.timeout(2 * SECONDS),
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="needs node and npm"),
]


@pytest.fixture(scope="session", autouse=True)
def packages() -> None:
    """What package-lock.json names, in tests/node/node_modules; fetched once, and again when the lock has changed."""
    lock = FOLDER / "package-lock.json"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not INSTALLED.exists() or INSTALLED.stat().st_mtime < lock.stat().st_mtime:
            run("npm", "ci")
            INSTALLED.touch()


def run(*command: str, **variables: str) -> str:
    """Run a program in the client's folder; what it said. It must succeed."""
    done = subprocess.run(
        command, cwd=FOLDER, env=os.environ | variables, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def passed(said: str) -> int:
    """How many tests node says have passed."""
    return next(int(line.removeprefix("# pass ")) for line in said.splitlines() if line.startswith("# pass "))


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[tuple[Process, int]]:
    """A worker process with the scripted engine, and the port of its channel."""
    port = free_port()
    process = Process("worker", tmp_path / "log", "--engine", "scripted", "--grpc-port", str(port))
    try:
        await process.start()
        yield process, port
    finally:
        process.end()


def test_golden_frames_are_their_json() -> None:
    """JavaScript's msgpack reads each golden frame as its JSON says, 64-bit integers as BigInt, and writes it again."""
    assert passed(run("node", "--test", "--test-reporter=tap", "golden.test.mjs")) > 50


async def test_a_worker_serves_the_three_rpcs(worker: tuple[Process, int]) -> None:
    """Call, Generate and Exchange, errors, cancel and 64-bit numbers work for a client that shares no code with ours."""
    process, port = worker
    said = run(
        *("node", "--test", "--test-reporter=tap", "worker.test.mjs"),
        WORKER=f"127.0.0.1:{port}",
        WORKER_HTTP=process.url,
    )

    assert passed(said) >= 10
