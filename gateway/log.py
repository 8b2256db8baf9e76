"""Logs: JSON lines on stderr, one event each. What libraries log goes the same way.

Nothing that came from outside is written unescaped: JSON escapes control characters, and everything beyond ASCII.
"""

import asyncio
import logging
import sys
from typing import IO, Any, Final, TextIO

import msgspec
import structlog

MAX_DELAY_SECONDS: Final = 0.1
"""How long an access line may wait for others to be written with."""

_SHARED: tuple[Any, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)
_RENDER: tuple[Any, ...] = (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what stderr is when something is logged: one that was kept may have been closed or replaced since."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _stderr_logger(*_arguments: object) -> structlog.WriteLogger:
    """The same for structlog, which asks for one at every line."""
    return structlog.WriteLogger(sys.stderr)


def configure(level: str) -> None:
    """Send everything from `level` on to stderr. Libraries speak from `warning` on. May be called again."""
    structlog.configure(
        processors=[*_SHARED, *_RENDER],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_stderr_logger,
        cache_logger_on_first_use=False,
    )
    handler = _StderrHandler()
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_SHARED, processors=[strip, *_RENDER]))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    # It warns of every malformed request, which is for any client to fill the log with.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


class AccessLine(msgspec.Struct, kw_only=True):
    """One request as it was answered. Times are in seconds; `first_byte` is null when no byte of a stream was sent.

    Every text in it is from a closed set, or is ASCII: the path is as it was sent (percent-encoded), without the query.
    """

    event: str = "request"
    level: str = "info"
    timestamp: str
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


class AccessLog:
    """Writes access lines past structlog's processors: a line costs an encoding, and its share of a write.

    Lines are written together, at most `MAX_DELAY_SECONDS` after the first of them, and by `flush`.
    """

    def __init__(self, file: IO[str] | None = None) -> None:
        self._file = file or sys.stderr
        self._encoder = msgspec.json.Encoder()
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, line: AccessLine) -> None:
        """One line more. Needs a running event loop."""
        self._lines.append(self._encoder.encode(line))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MAX_DELAY_SECONDS, self.flush)

    def flush(self) -> None:
        """Write what there is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        if lines:
            self._file.write(b"\n".join([*lines, b""]).decode("ascii", "replace"))
            self._file.flush()
