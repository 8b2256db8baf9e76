"""Logs: JSON lines on stderr, one event each. What libraries log goes the same way.

A line that cannot be written (a full disk, a reader that is gone) is lost; the request it tells of is not.
"""

import io
import logging
import sys
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

_SHARED: tuple[Any, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


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
        processors=[
            *_SHARED,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_stderr_logger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(_stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
