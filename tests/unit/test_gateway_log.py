"""What becomes of a log line that cannot be written."""

import io
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import structlog

from gateway import log


class FullDisk(io.StringIO):
    """Takes nothing."""

    def write(self, text: str) -> int:
        """Fails."""
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        """Fails as well."""
        raise OSError(28, "No space left on device")


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stderr that takes nothing."""
    monkeypatch.setattr(sys, "stderr", FullDisk())


@pytest.fixture
def configured() -> Iterator[None]:
    """Logs as the gateway writes them, until the end of the test."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    log.configure("info")
    yield
    structlog.reset_defaults()
    root.handlers = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("full_disk", "configured")
def test_a_line_that_cannot_be_written_is_lost_and_nothing_else() -> None:
    """Whoever logs does not hear of it."""
    structlog.get_logger("test").info("something.happened")
    logging.getLogger("test").error("Something happened.")


@pytest.mark.usefixtures("full_disk")
async def test_access_lines_that_cannot_be_written_are_lost_and_nothing_else() -> None:
    """Neither do requests."""
    access_log = log.AccessLog()
    access_log.add(
        log.AccessLine(
            timestamp=datetime.now(UTC),
            request_id="r",
            client_request_id=None,
            endpoint="chat",
            method="POST",
            path="/v1/chat/completions",
            status=200,
            outcome="completed",
            stream=False,
            seconds=0.1,
            first_byte=None,
        )
    )
    access_log.flush()
