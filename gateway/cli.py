"""The command packrelay-gateway: reads its settings, puts the parts together, serves."""

import sys
from collections.abc import Sequence
from importlib.metadata import version

import structlog
from cyclopts import App, CycloptsError
from cyclopts.config import Env

from gateway import log
from gateway.admission import Admission, Limits
from gateway.api.parts import Parts
from gateway.app import Door, create_app
from gateway.auth import ApiKeys, KeyFileRefused, read_keys
from gateway.config import GatewayConfig
from gateway.discovery.static import static_workers
from gateway.fleet import Fleet, Probing
from gateway.lifecycle import Lifecycle
from gateway.links.base import Deadlines
from gateway.links.http import HttpLink
from gateway.member import Role
from gateway.metrics import GatewayCollector, Metrics, Scrape
from gateway.orchestrator import Orchestrator, Serving
from gateway.routing import POLICIES
from gateway.server import ListenFailed, serve
from schemas import disagg

ENVIRONMENT_PREFIX = "PACKRELAY_"
USAGE_ERROR = 2

_STYLES = {"context_first": disagg.CONTEXT_FIRST, "generation_first": disagg.GENERATION_FIRST}

_log = structlog.get_logger(__name__)
_DEFAULT = GatewayConfig()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; 0 then, 1 when it cannot serve, 2 for settings that cannot be used."""
    try:
        config = parse(arguments)
        if config is None:  # --help or --version, which have been answered.
            return 0
        keys = read_keys(config.api_key_file) if config.api_key_file else ApiKeys()
    except (CycloptsError, KeyFileRefused) as refusal:
        return _complain(str(refusal), USAGE_ERROR)
    log.configure(config.log_level)
    _log.info("gateway.settings", version=version("packrelay"), **config.masked())
    try:
        return _serve(config, keys)
    except ListenFailed as failure:
        return _complain(str(failure), 1)


def parse(arguments: Sequence[str] | None = None) -> GatewayConfig | None:
    """The settings of a command line and the environment; None when help or version was asked for. Raises CycloptsError."""
    parsed: GatewayConfig | None = settings_parser()(
        arguments, exit_on_error=False, print_error=False, result_action="return_value"
    )
    return parsed


def settings_parser() -> App:
    """The command line, as the fields of GatewayConfig say it."""
    app = App(
        name="packrelay-gateway",
        help="Serve the OpenAI API on a fleet of workers.",
        version=lambda: version("packrelay"),
        config=Env(ENVIRONMENT_PREFIX, command=False),
    )

    @app.default
    def _configured(config: GatewayConfig = _DEFAULT) -> GatewayConfig:
        return config

    return app


def orchestrator_of(config: GatewayConfig) -> Orchestrator:
    """The workers of the settings, and how requests are served on them."""
    workers = static_workers(HttpLink, config.worker, config.context_worker, config.generation_worker)
    fleet = Fleet(workers, {role: POLICIES[config.router]() for role in Role}, Probing())
    deadlines = Deadlines(
        connect=config.connect_timeout,
        first_byte=config.first_byte_timeout,
        idle=config.idle_timeout,
        total=config.request_timeout,
    )
    serving = Serving(
        schedule_style=_STYLES[config.schedule_style],
        max_local_prefill_length=config.max_local_prefill_length,
        retries=config.retries,
        auth_key=config.internal_key,
        deadlines=deadlines,
    )
    return Orchestrator(fleet, serving)


def limits_of(config: GatewayConfig) -> Limits:
    """How much the settings let in."""
    return Limits(
        max_in_flight=config.max_in_flight,
        max_waiting=config.max_waiting,
        max_wait_seconds=config.max_wait_seconds,
        max_bytes=config.max_in_flight_bytes,
    )


def _serve(config: GatewayConfig, keys: ApiKeys) -> int:
    orchestrator = orchestrator_of(config)
    admission = Admission(limits_of(config))
    metrics = Metrics()
    lifecycle = Lifecycle(orchestrator.can_serve, config.grace)
    parts = Parts(config=config, backend=orchestrator, admission=admission, lifecycle=lifecycle, metrics=metrics)
    collector = GatewayCollector(metrics, admission, lambda: orchestrator.fleet.workers, lambda: orchestrator.retries)
    access_log = log.AccessLog() if config.access_log else None
    door = Door(create_app(parts, Scrape(collector)), parts, keys, access_log)
    return serve(door, config, lifecycle)


def _complain(message: str, status: int) -> int:
    sys.stderr.write(f"packrelay-gateway: {message}\n")
    return status
