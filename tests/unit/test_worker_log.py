"""The worker's log lines, and what becomes of them when nobody can take them."""

import errno
import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog

from worker import log


@pytest.fixture(autouse=True)
def configured() -> Iterator[None]:
    """Logs as a worker process has them; as before, afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    log.configure("info")
    yield
    structlog.reset_defaults()
    root.handlers = handlers
    root.setLevel(level)


class FullDisk(io.StringIO):
    """Takes nothing."""

    def write(self, _text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_every_event_is_a_line_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours and those of libraries, to whatever stderr is at that moment."""
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    structlog.get_logger().info("worker.listening", port=1)
    logging.getLogger("a.library").warning("It says %s", "this")

    ours, theirs = map(json.loads, written.getvalue().splitlines())
    assert (ours["event"], ours["port"], theirs["event"]) == ("worker.listening", 1, "It says this")


@pytest.mark.parametrize("closed", [False, True])
def test_a_line_that_cannot_be_written_is_only_lost(monkeypatch: pytest.MonkeyPatch, closed: bool) -> None:
    """Who logs on a full disk, or to a stream that was closed, hears nothing of it."""
    stream = FullDisk()
    if closed:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)

    structlog.get_logger().error("engine.died")
    logging.getLogger("a.library").warning("It says this.")
