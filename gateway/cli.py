"""The command packrelay-gateway: reads its settings, puts the parts together, serves."""

import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from socket import socket
from tempfile import TemporaryDirectory

import structlog
from cyclopts import App, ArgumentCollection, CycloptsError, Token
from cyclopts.config import Env

from gateway import door, log
from gateway.admission import Admission
from gateway.api.parts import Parts
from gateway.app import create_app
from gateway.auth import ApiKeys, KeyFileRefused, read_keys
from gateway.config import GatewayConfig
from gateway.disagg_config import DisaggConfigRefused, read_disagg_config
from gateway.discovery.choice import DiscoveryRefused, discovery_of
from gateway.discovery.static import static_workers
from gateway.door import Door
from gateway.fleet import Fleet
from gateway.lifecycle import Lifecycle
from gateway.limits import Limits
from gateway.links.base import Deadlines
from gateway.links.choice import LinkRefused, link_of
from gateway.member import Role
from gateway.metrics import Metrics
from gateway.orchestrator import Orchestrator
from gateway.probing import Probing
from gateway.routing import POLICIES, Policy
from gateway.scrape import GatewayCollector, Scrape
from gateway.server import ListenFailed, listen_together, serve
from gateway.serving import Serving
from gateway.siblings import Siblings
from gateway.supervisor import Supervisor
from schemas import disagg
from schemas.dialect import STOCK_DIALECTS

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
    except (CycloptsError, DisaggConfigRefused, KeyFileRefused) as refusal:
        return _complain(str(refusal), USAGE_ERROR)
    log.configure(config.log_level)
    compiled = not str(door.__file__).endswith(".py")
    _log.info("gateway.settings", version=version("packrelay"), compiled=compiled, **config.masked())
    _say_what_is_ignored(config)
    try:
        return _serve(config, keys)
    except (ListenFailed, LinkRefused, DiscoveryRefused) as failure:
        return _complain(str(failure), 1)


def parse(arguments: Sequence[str] | None = None) -> GatewayConfig | None:
    """The settings of a command line, the environment and the file; None when help or version was asked for.

    Raises CycloptsError, or DisaggConfigRefused for the file.
    """
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
        config=[Env(ENVIRONMENT_PREFIX, command=False), _add_file],
    )

    @app.default
    def _configured(config: GatewayConfig = _DEFAULT) -> GatewayConfig:
        return config

    return app


def _add_file(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Give the settings that neither a flag nor a variable has said the values of the file, if there is one."""
    said = {argument.name: argument.tokens[-1].value for argument in arguments if argument.tokens}
    if "--config" not in said:
        return
    file = read_disagg_config(Path(said["--config"]), said.get("--router-fallback"))
    for setting, values in file.settings.items():
        argument, _, _ = arguments.match(f"--{setting.replace('_', '-')}")
        if argument.name not in said:
            for index, value in enumerate(values):
                argument.append(Token(keyword=argument.name, value=value, source=said["--config"], index=index))


def _say_what_is_ignored(config: GatewayConfig) -> None:
    """Name the keys of the file that change nothing, once."""
    ignored = read_disagg_config(config.config, config.router_fallback).ignored if config.config else ()
    if ignored:
        _log.warning("gateway.config_ignored", file=str(config.config), keys=ignored)
        sys.stderr.write(f"packrelay-gateway: {config.config}: these keys change nothing here: {', '.join(ignored)}\n")


def orchestrator_of(config: GatewayConfig, process: int = 0) -> Orchestrator:
    """The workers of the settings, and how requests are served on them in one of the processes."""
    workers = static_workers(partial(link_of, config), config.worker, config.context_worker, config.generation_worker)
    chosen = {Role.CONTEXT: config.context_router, Role.GENERATION: config.generation_router}
    policies: dict[Role, Policy] = {role: POLICIES[chosen.get(role) or config.router]() for role in Role}
    discovered = config.cluster_uri is not None
    least = {Role.CONTEXT: config.min_context_workers, Role.GENERATION: config.min_generation_workers}
    dialect = STOCK_DIALECTS.get(config.dialect)
    fleet = Fleet(workers, policies, Probing(), minimum=least if discovered else {}, dialect=dialect)
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
        retry_fraction=config.retry_fraction,
        auth_key=config.internal_key,
        node_id=config.node_id,
        process=process,
        strip_message_history=config.strip_message_history,
        deadlines=deadlines,
    )
    return Orchestrator(fleet, serving, discovery=discovery_of(config, fleet))


def limits_of(config: GatewayConfig) -> Limits:
    """How much the settings let in."""
    return Limits(
        max_in_flight=config.max_in_flight,
        max_waiting=config.max_waiting,
        max_wait_seconds=config.max_wait_seconds,
        max_bytes=config.max_in_flight_bytes,
    )


def _serve(config: GatewayConfig, keys: ApiKeys) -> int:
    if config.processes == 1:
        return _serve_here(config, keys)
    listeners = listen_together(config.host, config.port, config.processes)
    with TemporaryDirectory(prefix="packrelay-") as folder:
        sockets = [Path(folder, f"metrics-{index}") for index in range(config.processes)]
        return Supervisor(
            config.processes,
            lambda index: _serve_here(config, keys, listeners[index], Siblings(sockets, index), index),
            config.grace,
        ).serve()


def _serve_here(
    config: GatewayConfig,
    keys: ApiKeys,
    listener: socket | None = None,
    siblings: Siblings | None = None,
    process: int = 0,
) -> int:
    """Serve in this process, the one of this number."""
    if siblings is not None:
        log.name_process(process)
    orchestrator = orchestrator_of(config, process)
    admission = Admission(limits_of(config))
    metrics = Metrics()
    lifecycle = Lifecycle(orchestrator.can_serve, config.grace)
    parts = Parts(config=config, backend=orchestrator, admission=admission, lifecycle=lifecycle, metrics=metrics)
    collector = GatewayCollector(
        metrics,
        admission,
        lambda: orchestrator.fleet.workers,
        retries=lambda: orchestrator.retries,
        retries_refused=lambda: orchestrator.budget.refused,
    )
    access_log = log.AccessLog(process=None if siblings is None else process) if config.access_log else None
    front = Door(create_app(parts, Scrape(collector, siblings)), parts, keys, access_log)
    try:
        return serve(front, config, lifecycle, listener)
    finally:
        if access_log is not None:
            access_log.flush()


def _complain(message: str, status: int) -> int:
    sys.stderr.write(f"packrelay-gateway: {message}\n")
    return status
