"""packrelay-worker: the command line. Everything heavy is imported only once the engine starts."""

import sys
from collections.abc import Sequence
from importlib.metadata import version

import structlog
import uvloop
from cyclopts import App
from cyclopts.config import Env

from worker import log
from worker.channel_start import ChannelFailed
from worker.cluster import RegistrationRefused
from worker.config import WorkerConfig
from worker.descriptors import raise_limit
from worker.engines.base import EngineError
from worker.server import bind, run_worker
from worker.tls import TlsRefused

ENVIRONMENT_PREFIX = "PACKRELAY_"

_DEFAULT = WorkerConfig()
_log = structlog.get_logger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM (status 0); 1 when the port or the engine cannot be had. Wrong usage exits by itself."""
    config = parser()(arguments)
    if config is None:  # --help or --version, which have been answered.
        return 0
    return serve(config)


def parser() -> App:
    """Reads arguments and `PACKRELAY_*` variables into a WorkerConfig."""
    app = App(
        name="packrelay-worker",
        help="Serve one model: OpenAI's API over JSON, SSE and msgpack, and both legs of disaggregated serving.",
        version=lambda: version("packrelay"),
        config=Env(ENVIRONMENT_PREFIX, command=False),
        result_action="return_value",
    )

    @app.default
    def _configured(config: WorkerConfig = _DEFAULT) -> WorkerConfig:
        return config

    return app


def serve(config: WorkerConfig) -> int:
    """Bind, load, serve. Answers the exit status."""
    log.configure(config.log_level)
    _log.info("worker.starting", **config.masked())
    raise_limit()
    try:
        listener = bind(config.host, config.port)
    except OSError as error:
        return _refuse(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}")
    with listener:
        try:
            uvloop.run(run_worker(config, listener))
        except (EngineError, ChannelFailed, RegistrationRefused, TlsRefused) as error:
            return _refuse(str(error))
    return 0


def _refuse(sentence: str) -> int:
    sys.stderr.write(f"packrelay-worker: {sentence}\n")
    return 1
