"""Logs: JSON lines on stderr, one event each. What libraries log goes the same way."""

import logging
import sys
from typing import Any, TextIO

import structlog

_SHARED: tuple[Any, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


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
        processors=[
            *_SHARED,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_stderr_logger,
        cache_logger_on_first_use=False,
    )
    handler = _StderrHandler()
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
