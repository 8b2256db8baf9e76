"""Which processes a local fleet consists of, on which ports and with which flags."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from gateway.config import Seconds
from gateway.launch_ports import GRPC_OFFSET, MAX_PORT, Ports

WORKER_HOST = "127.0.0.1"

Count = Annotated[int | None, Parameter(validator=Number(gte=1))]
Port = Annotated[int, Parameter(validator=Number(gte=0, lte=MAX_PORT))]

CommandOf = Callable[[str, Sequence[str]], Sequence[str]]
"""The command line that runs one of our packages (`gateway` or `worker`) with these flags."""


def _one_mode(_type: object, config: "LaunchConfig") -> None:
    if config.workers and (config.context_workers or config.generation_workers):
        raise ValueError("--workers means workers that do both legs: give it, or the other two, but not both.")


@Parameter(name="*", validator=_one_mode)
@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """What packrelay-up starts. Each field is a flag and a `PACKRELAY_*` variable; the flag wins."""

    engine: str = "llama_cpp"
    """Engine of every worker: llama_cpp, scripted, …"""

    model: str | None = None
    """Model of every worker, in the engine's terms (llama_cpp: the path of a GGUF). Left out: the engine's own."""

    workers: Count = None
    """Start this many workers that do both legs, instead of context and generation workers."""

    context_workers: Count = None
    """Context (prefill) workers; 1 unless --workers is given."""

    generation_workers: Count = None
    """Generation (decode) workers; 1 unless --workers is given."""

    link: Literal["http", "grpc"] = "http"
    """How the gateway speaks to the workers."""

    host: str = "127.0.0.1"
    """Address the gateway listens on. Workers listen on 127.0.0.1 only."""

    port: Port = 8000
    """Port of the gateway; 0 picks a free one."""

    worker_port: Port = 8001
    """HTTP port of the first worker, context workers first; the gRPC port is 1000 higher. 0 picks free ones."""

    grace: Seconds = 30.0
    """Seconds that running requests have to finish in when the fleet is stopped; the rest are ended with an error."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """One process to be: what it is called, where this machine reaches it, and how it is started."""

    name: str
    host: str
    port: int
    command: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    workers: Sequence[Program]
    gateway: Program
    grace: float


def own_command(package: str, flags: Sequence[str]) -> Sequence[str]:
    """Our own console script, run by this Python; -P keeps the working directory off the import path."""
    return [sys.executable, "-P", "-m", f"{package}.entry", *flags]


def launch_plan(config: LaunchConfig, command_of: CommandOf = own_command) -> LaunchPlan:
    """Lay out the fleet. Raises PortRefused when a port is taken, out of range, or asked for twice."""
    ports = Ports()
    gateway_port = _gateway_port(config, ports)
    flags = ["--host", config.host, "--port", str(gateway_port), "--link", config.link, *_grace(config)]
    workers = []
    roles = list(_roles(config))
    chosen = [_worker_port(config, ports, number, name) for number, (name, _) in enumerate(roles)]
    peers = [flag for port in chosen for flag in ("--peer", f"{WORKER_HOST}:{port}")]
    for (name, role), port in zip(roles, chosen, strict=True):
        command = command_of("worker", [*_worker_flags(config, role, port), *peers])
        workers.append(Program(name=name, host=WORKER_HOST, port=port, command=command))
        flags += [_GATEWAY_FLAG[role], url_of(WORKER_HOST, port)]
    host = _REACHED_AT.get(config.host, config.host)
    gateway = Program(name="gateway", host=host, port=gateway_port, command=command_of("gateway", flags))
    return LaunchPlan(workers=workers, gateway=gateway, grace=config.grace)


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


# A server on every interface is asked on this machine's own.
_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_GATEWAY_FLAG = {"both": "--worker", "context": "--context-worker", "generation": "--generation-worker"}


def _roles(config: LaunchConfig) -> Iterator[tuple[str, str]]:
    """Name and role of every worker, in the order of their ports."""
    if config.workers:
        yield from _numbered("worker", "both", config.workers)
        return
    yield from _numbered("context worker", "context", config.context_workers or 1)
    yield from _numbered("generation worker", "generation", config.generation_workers or 1)


def _numbered(name: str, role: str, count: int) -> Iterator[tuple[str, str]]:
    for number in range(1, count + 1):
        yield (f"{name} {number}" if count > 1 else name), role


def _worker_flags(config: LaunchConfig, role: str, port: int) -> Sequence[str]:
    flags = ["--host", WORKER_HOST, "--port", str(port), "--engine", config.engine, "--role", role]
    flags += _grace(config)
    if config.link == "grpc":
        flags += ["--grpc-port", str(port + GRPC_OFFSET)]
    if config.model is not None:
        flags += ["--model", config.model]
    return flags


def _grace(config: LaunchConfig) -> Sequence[str]:
    return ["--grace", f"{config.grace:g}"]


def _gateway_port(config: LaunchConfig, ports: Ports) -> int:
    if config.port == 0:
        return ports.pick(config.host, owner="gateway")
    return ports.claim(config.host, config.port, owner="gateway", flag="--port")


def _worker_port(config: LaunchConfig, ports: Ports, number: int, name: str) -> int:
    pair = config.link == "grpc"
    if config.worker_port == 0:
        return ports.pick(WORKER_HOST, owner=name, pair=pair)
    claim = ports.claim_pair if pair else ports.claim
    return claim(WORKER_HOST, config.worker_port + number, owner=name, flag="--worker-port")
