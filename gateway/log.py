"""Logs: JSON lines on stderr, one event each. What libraries log goes the same way.

Nothing that came from outside is written unescaped: JSON escapes control characters, and everything beyond ASCII.
"""

import logging
import sys
from typing import IO, Any

import msgspec
import structlog

_SHARED: tuple[Any, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)
_RENDER: tuple[Any, ...] = (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())


def configure(level: str) -> None:
    """Send everything from `level` on to stderr. Libraries speak from `warning` on. May be called again."""
    structlog.configure(
        processors=[*_SHARED, *_RENDER],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
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
    """Writes access lines past structlog's processors: a line costs an encoding and a write."""

    def __init__(self, file: IO[str] | None = None) -> None:
        self._file = file or sys.stderr
        self._encoder = msgspec.json.Encoder()

    def write(self, line: AccessLine) -> None:
        """One line, flushed."""
        self._file.write(self._encoder.encode(line).decode("ascii", "replace") + "\n")
        self._file.flush()
