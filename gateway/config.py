"""What a gateway process can be told, in one frozen value. Its flags and `PACKRELAY_*` variables derive from the fields."""

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
Count = Annotated[int, Parameter(validator=Number(gte=0))]
Seconds = Annotated[float, Parameter(validator=Number(gt=0, lte=86400))]
Pause = Annotated[float, Parameter(validator=Number(gte=0, lte=86400))]
Texts = Annotated[tuple[str, ...], Parameter(negative=())]
Router = Literal["least_loaded", "round_robin"]

_MASKED = "internal_key"


def _is_usable(_type: object, config: "GatewayConfig") -> None:
    """Refuse what no single field can see, and what is not there yet; the messages name the flags."""
    _has_link(config)
    _has_workers(config)
    if config.internal_key == "":
        raise ValueError("--internal-key must not be empty: leave it out, or give a secret.")
    for origin in config.cors_origin:
        if origin != "*" and (urlsplit(origin).scheme not in {"http", "https"} or origin.endswith("/")):
            raise ValueError(f"--cors-origin takes an origin such as https://chat.example, or *, not {origin!r}.")


def _has_link(config: "GatewayConfig") -> None:
    if (config.link_tls_cert is None) is not (config.link_tls_key is None):
        raise ValueError("--link-tls-cert and --link-tls-key go together: give both, or neither.")
    used = config.link == "grpc" or any(url.startswith(("grpc:", "https:")) for url in config.workers())
    if not used and (config.link_tls_ca or config.link_tls_cert):
        raise ValueError(
            "--link-tls-ca, --link-tls-cert and --link-tls-key are for --link grpc and for https:// workers."
        )
    if (config.tls_cert is None) is not (config.tls_key is None):
        raise ValueError("--tls-cert and --tls-key go together: give both, or neither.")
    if config.tls_ca is not None and config.tls_cert is None:
        raise ValueError("--tls-ca asks for clients' certificates, which needs --tls-cert and --tls-key.")


def _has_workers(config: "GatewayConfig") -> None:
    for url in config.workers():
        if not _is_worker_url(url):
            raise ValueError(
                f"--worker and its kind take a URL such as http://HOST:PORT or grpc://HOST:PORT, not {url!r}."
            )
    if bool(config.context_worker) is not bool(config.generation_worker):
        raise ValueError("--context-worker and --generation-worker go together: give at least one of each.")
    if config.cluster_uri is not None:
        try:
            etcd_addresses(config.cluster_uri)
        except ValueError as error:
            raise ValueError(f"--cluster-uri: {error} Workers register in etcd, not with the gateway.") from error
    elif not config.workers():
        raise ValueError(
            "There is no worker: give --worker, or --context-worker and --generation-worker, or --cluster-uri."
        )


def _is_worker_url(url: str) -> bool:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        return False
    named = parts.scheme in {"http", "https"} and bool(parts.hostname) and port != 0
    if parts.scheme == "grpc":
        named = bool(parts.hostname) and bool(port) and not parts.path.strip("/")
    return named and not (parts.username or parts.password or parts.query or parts.fragment)


@Parameter(name="*", validator=_is_usable)
@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    """Everything packrelay-gateway can be told. Each field is a flag and a `PACKRELAY_*` variable; the flag wins."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: Port = 8000
    """Port to listen on; 0 picks a free one (the log's event `gateway.listening` names it)."""

    tls_cert: Path | None = None
    """PEM file with the certificate to serve HTTPS with. Left out: HTTP in plain text."""

    tls_key: Path | None = None
    """PEM file with the key of --tls-cert."""

    tls_ca: Path | None = None
    """PEM file with the CA of the certificates that clients must show (mutual TLS). Left out: they show none."""

    worker: Texts = ()
    """URL of a worker that does both legs. May be given several times; a variable separates them by spaces."""

    context_worker: Texts = ()
    """URL of a context (prefill) worker. May be given several times."""

    generation_worker: Texts = ()
    """URL of a generation (decode) worker. May be given several times."""

    link: Literal["http", "grpc"] = "http"
    """How the gateway speaks to workers given as http://: by HTTP, or over the gRPC channel whose port /server_info says."""

    link_tls_ca: Path | None = None
    """PEM file with the CA of the workers' certificates. Left out: gRPC is plain text, https:// trusts the system's CAs."""

    link_tls_cert: Path | None = None
    """PEM file with the certificate the gateway shows to the workers (mutual TLS)."""

    link_tls_key: Path | None = None
    """PEM file with the key of --link-tls-cert."""

    processes: Positive = 1
    """Gateway processes on one port: about one per core. What is limited (--max-in-flight and its kind) is limited in each."""

    api_key_file: Path | None = None
    """File with the API keys that clients may use, one a line. Left out: no key is asked for."""

    config: Path | None = None
    """The YAML file of `trtllm-serve disaggregated`. Flags and variables win over it; keys that change nothing are named."""

    router: Router = "least_loaded"
    """How the worker of a leg is chosen."""

    context_router: Router | None = None
    """How the context worker is chosen. Left out: as --router says."""

    generation_router: Router | None = None
    """How the generation worker is chosen. Left out: as --router says."""

    router_fallback: Router | None = None
    """What stands for a router that --config names and that does not exist here. Left out: such a file is refused."""

    cluster_uri: str | None = None
    """Where workers register: etcd://HOST:PORT[,HOST:PORT]. Left out: the workers are those given. Needs the extra `etcd`."""

    cluster_name: str = ""
    """The cluster whose workers these are, as they were told."""

    min_context_workers: Count = 1
    """With --cluster-uri: context workers that must be there before requests are served."""

    min_generation_workers: Count = 1
    """With --cluster-uri: generation workers that must be there before requests are served."""

    inactive_timeout: Seconds = 10.0
    """With --cluster-uri: seconds a worker is kept whose key is missing when etcd comes back; as long as the workers' leases."""

    dialect: Literal["auto", "stock", "stock-2026-07", "stock-2026-06"] = "auto"
    """What stock workers understand: by the version they say (auto), or whatever they say."""

    node_id: Annotated[int | None, Parameter(validator=Number(gte=0, lte=255))] = None
    """A part of the ids of disaggregated requests that is this gateway's own, 0 to 255. Left out, one is drawn."""

    strip_message_history: bool = False
    """Send generation workers only the last message of a chat: they have the prompt as token ids. For text without parsers only."""

    allow_request_chat_template: bool = False
    """Let requests bring a chat template of their own; the workers must allow it too. Otherwise such a request is refused."""

    schedule_style: Literal["context_first", "generation_first"] = "context_first"
    """Whether the generation leg starts after the context leg, or with it."""

    max_local_prefill_length: Count = 0
    """Prompts of at most this many tokens (estimated) skip the context leg. 0: none do."""

    retries: Count = 1
    """How many more attempts a request has after its first one failed before anything was relayed."""

    retry_fraction: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] = 0.2
    """Further attempts of all requests together, as a fraction of the requests; one a second is always possible."""

    internal_key: str | None = field(default=None, repr=False)
    """Secret shared by gateway and workers: it signs hand-offs. Left out: they are unsigned. Better as a variable than a flag."""

    connect_timeout: Seconds = 2.0
    """Seconds to reach a worker."""

    first_byte_timeout: Seconds = 120.0
    """Seconds until a worker's answer begins; for a stream, until its first event, which is when prefill is over."""

    idle_timeout: Seconds = 60.0
    """Longest silence of a worker within an answer, in seconds."""

    request_timeout: Seconds = 600.0
    """Seconds a request may take in all."""

    body_timeout: Seconds = 60.0
    """Seconds a client has to send the body of its request."""

    head_timeout: Seconds = 15.0
    """Seconds a client has to send the head of its request."""

    keep_alive_timeout: Annotated[int, Parameter(validator=Number(gte=1, lte=3600))] = 75
    """Seconds an idle client connection is kept open."""

    read_window_ms: Annotated[float, Parameter(validator=Number(gte=0, lte=100))] = 1.0
    """Milliseconds that events of a fast stream are collected for, over either link; the first never waits. 0: none wait."""

    grace: Pause = 30.0
    """Seconds that running requests have to finish in after SIGTERM; the rest are ended with an error."""

    max_in_flight: Positive = 4096
    """Requests served at once."""

    max_waiting: Count = 1024
    """Requests that may wait while --max-in-flight are served; more are answered 429."""

    max_wait_seconds: Seconds = 30.0
    """Longest wait, in seconds; then the answer is 429."""

    max_body_bytes: Positive = MAX_BODY_BYTES
    """Largest request body, in bytes, compressed or not; larger ones are answered 413."""

    max_in_flight_bytes: Positive = 1 << 30
    """Bytes of request bodies held at once, over all requests; more are answered 503."""

    strict: bool = False
    """Refuse requests with fields nobody knows, instead of ignoring them and naming them in a response header."""

    cors_origin: Texts = ()
    """Origin that browsers may call from, or *. May be given several times. Left out: none."""

    access_log: bool = True
    """Log one line for every request."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is logged, as JSON lines on stderr."""

    def workers(self) -> tuple[str, ...]:
        """The URLs of all workers, whatever their role."""
        return (*self.context_worker, *self.generation_worker, *self.worker)

    def masked(self) -> dict[str, Any]:
        """Every field, for the log: the secret is only said to be there."""
        shown = {item.name: getattr(self, item.name) for item in fields(self)}
        if self.internal_key is not None:
            shown[_MASKED] = "***"
        return {name: str(value) if isinstance(value, Path) else value for name, value in shown.items()}
