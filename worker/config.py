"""What a worker process can be told, in one frozen value. Its flags and `PACKRELAY_*` variables derive from the fields."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from cyclopts import Parameter
from cyclopts.validators import Number

from schemas.cluster import etcd_addresses
from schemas.codec import MAX_BODY_BYTES

Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Positive = Annotated[int, Parameter(validator=Number(gte=1))]
Seconds = Annotated[float, Parameter(validator=Number(gte=0, lte=86400))]
Texts = Annotated[tuple[str, ...], Parameter(negative=())]

_WILDCARDS = frozenset({"0.0.0.0", "::", ""})


def _is_usable(_type: object, config: "WorkerConfig") -> None:
    """Refuse what no single field can see; the messages name the flags."""
    if (config.grpc_tls_cert is None) is not (config.grpc_tls_key is None):
        raise ValueError("--grpc-tls-cert and --grpc-tls-key go together: give both, or neither.")
    if config.grpc_tls_ca is not None and config.grpc_tls_cert is None:
        raise ValueError(
            "--grpc-tls-ca asks for clients' certificates, which needs --grpc-tls-cert and --grpc-tls-key."
        )
    if (config.tls_cert is None) is not (config.tls_key is None):
        raise ValueError("--tls-cert and --tls-key go together: give both, or neither.")
    if config.tls_ca is not None and config.tls_cert is None:
        raise ValueError("--tls-ca asks for clients' certificates, which needs --tls-cert and --tls-key.")
    for option in config.engine_option:
        if not option.partition("=")[1] or option.startswith("="):
            raise ValueError(f"--engine-option takes KEY=VALUE, not {option!r}.")
    if config.internal_key == "":
        raise ValueError("--internal-key must not be empty: leave it out, or give a secret.")
    if config.require_key and config.internal_key is None:
        raise ValueError("--require-key needs --internal-key.")
    _can_register(config)
    if config.advertise_url is not None and urlsplit(config.advertise_url).scheme not in {"http", "https"}:
        raise ValueError(f"--advertise-url takes an http or https URL, not {config.advertise_url!r}.")


def _can_register(config: "WorkerConfig") -> None:
    if config.cluster_uri is None:
        return
    try:
        etcd_addresses(config.cluster_uri)
    except ValueError as error:
        raise ValueError(f"--cluster-uri: {error}") from error
    if config.tls_cert is not None:
        raise ValueError("--cluster-uri and --tls-cert do not go together: a registration is of plain HTTP.")
    if config.role == "both":
        raise ValueError("--cluster-uri needs --role context or --role generation: a registration has no other roles.")
    if config.heartbeat_interval >= config.inactive_timeout:
        raise ValueError("--heartbeat-interval must be less than --inactive-timeout, or the key would come and go.")
    reached = urlsplit(config.advertise_url or "http://")
    if reached.scheme != "http" or reached.path.strip("/"):
        raise ValueError("--cluster-uri needs an --advertise-url of http, host and port: a registration has no more.")


@Parameter(name="*", validator=_is_usable)
@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """Everything packrelay-worker can be told. Each field is a flag and a `PACKRELAY_*` variable; the flag wins."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: Port = 8001
    """Port to listen on; 0 picks a free one (the log's event `worker.listening` names it)."""

    grpc_port: Annotated[int | None, Parameter(validator=Number(gte=0, lte=65535))] = None
    """Port of the gRPC channel; 0 picks a free one. Left out: no channel. Needs the extra `grpc`."""

    grpc_tls_cert: Path | None = None
    """PEM file with the channel's certificate. Left out: the channel is plain text."""

    grpc_tls_key: Path | None = None
    """PEM file with the key of --grpc-tls-cert."""

    grpc_tls_ca: Path | None = None
    """PEM file with the CA of the certificates that the channel's clients must show (mutual TLS). Left out: they show none."""

    engine: str = "llama_cpp"
    """What runs the model: llama_cpp, scripted, …"""

    model: str | None = None
    """The model, in the engine's terms (llama_cpp: the path of a GGUF). Left out: the engine's own."""

    served_model_name: str | None = None
    """The name clients ask for. Left out: the model's own."""

    role: Literal["context", "generation", "both"] = "both"
    """The leg this worker is meant for; published in /server_info, and nothing is refused because of it."""

    engine_option: Texts = ()
    """KEY=VALUE, handed to the engine as it is. May be given several times."""

    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
    """Threads the engine computes with. Left out: the engine's own default."""

    context_length: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
    """Tokens a sequence may have, prompt and output together. Left out: the model's own."""

    slots: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
    """Sequences the engine works on at once. Left out: the engine's own default."""

    max_requests: Positive = 4096
    """Requests held at once, waiting ones included; more are answered 429."""

    max_body_bytes: Positive = MAX_BODY_BYTES
    """Largest request body, in bytes; larger ones are answered 413."""

    internal_key: str | None = field(default=None, repr=False)
    """Secret shared by gateway and workers: it signs hand-offs. Left out: they are not signed. Best given as the variable."""

    require_key: bool = False
    """Take work only from who shows --internal-key, as our gateway does. Stock orchestrators do not."""

    tls_cert: Path | None = None
    """PEM file with the certificate to serve HTTPS with. Left out: HTTP in plain text."""

    tls_key: Path | None = None
    """PEM file with the key of --tls-cert."""

    tls_ca: Path | None = None
    """PEM file with the CA of the certificates that callers must show (mutual TLS), and that workers fetched from show."""

    keep_alive_timeout: Annotated[float, Parameter(validator=Number(gt=0, lte=86400))] = 75.0
    """Seconds an idle connection is kept. Longer than any client keeps one: who reuses it must be the one who gives it up."""

    advertise_url: str | None = None
    """Where other workers reach this one. Left out: http or https, the host (this machine's name for a wildcard), the port."""

    cluster_uri: str | None = None
    """Where to register: etcd://HOST:PORT[,HOST:PORT]. Left out: the worker does not register. Needs the extra `etcd`."""

    cluster_name: str = ""
    """The cluster this worker belongs to; a gateway looks for one cluster's workers."""

    heartbeat_interval: Seconds = 5.0
    """Seconds between two signs of life to etcd."""

    inactive_timeout: Seconds = 10.0
    """Seconds without a sign of life after which etcd forgets this worker; whole ones, rounded up."""

    peer: Texts = ()
    """Host (or HOST:PORT) that prefill state may be fetched from; may be given several times. Left out: any."""

    handoff_bytes: Positive = 1 << 30
    """Prefill states kept for other workers, in bytes altogether."""

    handoff_seconds: Annotated[float, Parameter(validator=Number(gt=0, lte=86400))] = 60.0
    """How long a prefill state is kept until it is fetched, and how long a fetch waits for one that is still being made."""

    grace: Seconds = 30.0
    """Seconds that running requests have to finish in after SIGTERM; the rest are ended with an error."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is logged, as JSON lines on stderr."""

    def engine_options(self) -> Mapping[str, str]:
        """The engine's options by name. The three that have flags of their own win over `--engine-option`."""
        options = dict(option.split("=", 1) for option in self.engine_option)
        own = {"threads": self.threads, "context_length": self.context_length, "slots": self.slots}
        return options | {name: str(value) for name, value in own.items() if value is not None}

    def base_url(self, port: int) -> str:
        """Where other workers reach this one, given the port it really listens on."""
        if self.advertise_url is not None:
            return self.advertise_url.rstrip("/")
        host = socket.gethostname() if self.host in _WILDCARDS else self.host
        scheme = "http" if self.tls_cert is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def masked(self) -> dict[str, Any]:
        """Every field, for the log: the secret is only said to be there."""
        shown = {item.name: getattr(self, item.name) for item in fields(self)}
        if self.internal_key is not None:
            shown["internal_key"] = "***"
        return {name: str(value) if isinstance(value, Path) else value for name, value in shown.items()}
