"""The servers that are measured, and how each is started in front of the given workers.

Each as it comes: SMG and packrelay both log every request unless told otherwise, and do so here (what they write is thrown away);
the quiet ones are for comparison.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from msgspec import Struct

from benchmarks.bodies import MODEL

ROOT: Final = Path(__file__).parents[1]
SMG: Final = ROOT / ".venv" / "smg" / "bin" / "smg"
COMPILED: Final = ROOT / ".venv" / "compiled" / "bin" / "python"
"""The interpreter of the environment that has packrelay as `make wheel` builds it."""

Command = Callable[[int, Sequence[int], Sequence[int], Path], list[str]]
"""The command line of a contender: its port, the ports of workers, those of context workers, and a folder for what it needs."""


class Contender(Struct, frozen=True, kw_only=True):
    """A server that relays. `found` says whether it is installed here, `version` answers which one is."""

    name: str
    command: Command
    found: Callable[[], bool]
    version: Callable[[], str]
    install: str = ""


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _packrelay(port: int, workers: Sequence[int], contexts: Sequence[int], _folder: Path) -> list[str]:
    python = str(COMPILED) if _is_compiled() else sys.executable
    return [python, *_gateway(port, workers, contexts)]


def _packrelay_interpreted(port: int, workers: Sequence[int], contexts: Sequence[int], _folder: Path) -> list[str]:
    return [sys.executable, *_gateway(port, workers, contexts)]


def _gateway(port: int, workers: Sequence[int], contexts: Sequence[int]) -> list[str]:
    command = ["-P", "-m", "gateway.entry", "--port", str(port), "--router", "round_robin"]
    role = "--generation-worker" if contexts else "--worker"
    for worker in workers:
        command += [role, _url(worker)]
    for context in contexts:
        command += ["--context-worker", _url(context)]
    return command


def _packrelay_quiet(port: int, workers: Sequence[int], contexts: Sequence[int], folder: Path) -> list[str]:
    return [*_packrelay(port, workers, contexts, folder), "--no-access-log"]


def _packrelay_at_once(port: int, workers: Sequence[int], contexts: Sequence[int], folder: Path) -> list[str]:
    return [*_packrelay_quiet(port, workers, contexts, folder), "--read-window-ms", "0"]


def _packrelay_grpc(window_ms: float) -> "Command":
    def command(port: int, workers: Sequence[int], contexts: Sequence[int], folder: Path) -> list[str]:
        words = [word.replace("http:", "grpc:") for word in _packrelay_quiet(port, workers, contexts, folder)]
        return [*words, "--read-window-ms", f"{window_ms:g}"]

    return command


def _packrelay_times(processes: int) -> "Command":
    def command(port: int, workers: Sequence[int], contexts: Sequence[int], folder: Path) -> list[str]:
        return [*_packrelay(port, workers, contexts, folder), "--processes", str(processes)]

    return command


def _smg(port: int, workers: Sequence[int], contexts: Sequence[int], _folder: Path) -> list[str]:
    common = [str(SMG), "launch", "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    common += ["--prometheus-port", str(port + 1)]
    if not contexts:
        return [*common, "--worker-urls", *(_url(worker) for worker in workers)]
    prefill = [text for context in contexts for text in ("--prefill", _url(context), "8998")]
    decode = [text for worker in workers for text in ("--decode", _url(worker))]
    return [*common, "--pd-disaggregation", *prefill, *decode]


def _smg_quiet(port: int, workers: Sequence[int], contexts: Sequence[int], folder: Path) -> list[str]:
    return [*_smg(port, workers, contexts, folder), "--log-level", "error"]


def _worker(port: int, _workers: Sequence[int], _contexts: Sequence[int], _folder: Path) -> list[str]:
    script = ["--engine-option", "itl_ms=10", "--engine-option", "tokens=128"]
    command = [sys.executable, "-m", "worker.entry", "--port", str(port), "--engine", "scripted", *script]
    return [*command, "--served-model-name", MODEL]


# The floor at its best: bodies stay in memory (measured at 1 MB: half of what relaying them piece by piece costs).
_NGINX: Final = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log /dev/null; master_process on;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 16m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000;
  upstream workers {{ {servers} keepalive 2048; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      proxy_pass http://workers; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def _nginx(port: int, workers: Sequence[int], _contexts: Sequence[int], folder: Path) -> list[str]:
    servers = " ".join(f"server 127.0.0.1:{worker};" for worker in workers)
    settings = folder / "nginx.conf"
    settings.write_text(_NGINX.format(folder=folder, port=port, servers=servers))
    return [shutil.which("nginx") or "nginx", "-c", str(settings)]


def _baseline(form: str) -> Command:
    def command(port: int, workers: Sequence[int], contexts: Sequence[int], _folder: Path) -> list[str]:
        words = [sys.executable, "-m", f"benchmarks.baselines.{form}", str(port), _url(workers[0])]
        return [*words, *(_url(context) for context in contexts)]

    return command


def _own_version() -> str:
    return f"{version('packrelay')}, {'compiled' if _is_compiled() else 'interpreted'}"


def _is_compiled() -> bool:
    """Whether `make compiled` came to its end."""
    return (COMPILED.parents[1] / ".installed").exists()


def _nginx_version() -> str:
    told = subprocess.run([shutil.which("nginx") or "nginx", "-v"], capture_output=True, text=True, check=False)
    return told.stderr.strip().rpartition("/")[2]


def _smg_version() -> str:
    code = "from importlib.metadata import version; print(version('smg'))"
    told = subprocess.run([SMG.parent / "python", "-c", code], capture_output=True, text=True, check=False)
    return told.stdout.strip()


def _relay_versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in ("fastapi", "pydantic", "aiohttp"))


PACKRELAY: Final = "packrelay"
"""Compiled, where a C compiler is at hand: `make bench` sees to that."""
PACKRELAY_INTERPRETED: Final = "packrelay, interpreted"
PACKRELAY_QUIET: Final = "packrelay, no access log"
PACKRELAY_TWICE: Final = "packrelay x2"
PACKRELAY_FOUR_TIMES: Final = "packrelay x4"
PACKRELAY_AT_ONCE: Final = "packrelay, window 0"
PACKRELAY_GRPC: Final = "packrelay, gRPC"
PACKRELAY_GRPC_AT_ONCE: Final = "packrelay, gRPC, window 0"
PACKRELAY_GRPC_LONG: Final = "packrelay, gRPC, window 8 ms"
NGINX: Final = "nginx"
SMG_NAME: Final = "SMG"
SMG_QUIET: Final = "SMG, errors only"
PYDANTIC_JSON: Final = "pydantic + JSON"
PYDANTIC_MSGPACK: Final = "pydantic + msgpack"
PACKRELAY_WORKER: Final = "packrelay worker"
"""The front end of one of our workers, with an engine that makes a token every 10 ms for each stream."""
DIRECT: Final = "direct"
"""No server in between: the load goes to the worker itself."""

CONTENDERS: Final = {
    contender.name: contender
    for contender in (
        Contender(name=PACKRELAY, command=_packrelay, found=lambda: True, version=_own_version),
        Contender(
            name=PACKRELAY_INTERPRETED,
            command=_packrelay_interpreted,
            found=lambda: True,
            version=lambda: f"{version('packrelay')}, interpreted",
        ),
        *(
            Contender(
                name=name,
                command=_packrelay_times(processes),
                found=lambda: True,
                version=_own_version,
            )
            for name, processes in ((PACKRELAY_TWICE, 2), (PACKRELAY_FOUR_TIMES, 4))
        ),
        Contender(name=PACKRELAY_QUIET, command=_packrelay_quiet, found=lambda: True, version=_own_version),
        Contender(
            name=PACKRELAY_AT_ONCE,
            command=_packrelay_at_once,
            found=lambda: True,
            version=_own_version,
        ),
        Contender(name=PACKRELAY_WORKER, command=_worker, found=lambda: True, version=lambda: version("packrelay")),
        *(
            Contender(
                name=name,
                command=_packrelay_grpc(window_ms),
                found=lambda: find_spec("grpc") is not None,
                version=lambda: f"{_own_version()}, grpcio {version('grpcio')}",
                install="make install",
            )
            for name, window_ms in ((PACKRELAY_GRPC, 1), (PACKRELAY_GRPC_AT_ONCE, 0), (PACKRELAY_GRPC_LONG, 8))
        ),
        Contender(
            name=NGINX,
            command=_nginx,
            found=lambda: shutil.which("nginx") is not None,
            version=_nginx_version,
            install="apt-get install nginx-light",
        ),
        Contender(name=SMG_NAME, command=_smg, found=SMG.exists, version=_smg_version, install="make bench-smg"),
        Contender(name=SMG_QUIET, command=_smg_quiet, found=SMG.exists, version=_smg_version, install="make bench-smg"),
        Contender(name=PYDANTIC_JSON, command=_baseline("pydantic_json"), found=lambda: True, version=_relay_versions),
        Contender(
            name=PYDANTIC_MSGPACK, command=_baseline("pydantic_msgpack"), found=lambda: True, version=_relay_versions
        ),
    )
}
