"""Logs: JSON lines on stderr, one event each. What libraries log goes the same way.

Nothing that came from outside is written unescaped: JSON escapes control characters, and everything beyond ASCII. A line that
cannot be written (a full disk, a reader that is gone) is lost; the request it tells of is not.
"""

import asyncio
import io
import logging
import sys
from contextlib import suppress
from datetime import datetime
from typing import IO, Any, Final, TextIO, cast

import msgspec
import structlog
from msgspec import UNSET, UnsetType

MAX_DELAY_SECONDS: Final = 0.1
"""How long an access line may wait for others to be written with."""

_SHARED: tuple[Any, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)
_RENDER: tuple[Any, ...] = (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())


class _Stderr(io.TextIOBase):
    """What stderr is when something is logged: one that was kept may have been closed or replaced since. Never raises."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()


_stderr = cast("TextIO", _Stderr())


def _stderr_logger(*_arguments: object) -> structlog.WriteLogger:
    return structlog.WriteLogger(_stderr)


def configure(level: str) -> None:
    """Send everything from `level` on to stderr. Libraries speak from `warning` on. May be called again."""
    structlog.configure(
        processors=[*_SHARED, *_RENDER],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_stderr_logger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(_stderr)
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_SHARED, processors=[strip, *_RENDER]))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    # It warns of every malformed request, which is for any client to fill the log with.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def name_process(number: int) -> None:
    """Have everything that is logged from now on say which of several processes says it."""
    structlog.contextvars.bind_contextvars(process=number)


class AccessLine(msgspec.Struct, kw_only=True):
    """One request as it was answered. Times are in seconds; `first_byte` is null when no byte of a stream was sent. `process` says
    which of several gateway processes answered.

    Every text in it is from a closed set, or is ASCII: the path is as it was sent (percent-encoded), without the query.
    """

    event: str = "request"
    level: str = "info"
    timestamp: datetime
    request_id: str
    client_request_id: str | None
    endpoint: str
    method: str
    path: str
    status: int
    outcome: str
    stream: bool
    seconds: float
    first_byte: float | None
    process: int | UnsetType = UNSET


class AccessLog:
    """Writes access lines past structlog's processors: a line costs an encoding, and its share of a write.

    Lines are written together, at most `MAX_DELAY_SECONDS` after the first of them, and by `flush`.
    """

    def __init__(self, file: IO[str] | None = None, process: int | None = None) -> None:
        self._file = file or _stderr
        self._process = process
        self._encoder = msgspec.json.Encoder()
        self._lines: list[AccessLine] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, line: AccessLine) -> None:
        """One line more. Needs a running event loop."""
        if self._process is not None:
            line.process = self._process
        self._lines.append(line)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MAX_DELAY_SECONDS, self.flush)

    def flush(self) -> None:
        """Write what there is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        if lines:
            self._file.write(self._encoder.encode_lines(lines).decode("ascii", "replace"))
            self._file.flush()
