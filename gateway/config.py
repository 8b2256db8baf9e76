"""What a gateway process can be told, in one frozen value. Its flags and `PACKRELAY_*` variables derive from the fields."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from cyclopts import Parameter
from cyclopts.validators import Number

from schemas.codec import MAX_BODY_BYTES

Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Positive = Annotated[int, Parameter(validator=Number(gte=1))]
Count = Annotated[int, Parameter(validator=Number(gte=0))]
Seconds = Annotated[float, Parameter(validator=Number(gt=0, lte=86400))]
Pause = Annotated[float, Parameter(validator=Number(gte=0, lte=86400))]
Texts = Annotated[tuple[str, ...], Parameter(negative=())]

_MASKED = "internal_key"


def _is_usable(_type: object, config: "GatewayConfig") -> None:
    """Refuse what no single field can see, and what is not there yet; the messages name the flags."""
    _is_built(config)
    _has_workers(config)
    if config.internal_key == "":
        raise ValueError("--internal-key must not be empty: leave it out, or give a secret.")
    for origin in config.cors_origin:
        if origin != "*" and (urlsplit(origin).scheme not in {"http", "https"} or origin.endswith("/")):
            raise ValueError(f"--cors-origin takes an origin such as https://chat.example, or *, not {origin!r}.")


def _is_built(config: "GatewayConfig") -> None:
    if config.link == "grpc" or any(url.startswith("grpc:") for url in config.workers()):
        raise ValueError("--link grpc is not available yet: this version of the gateway speaks HTTP to its workers.")
    if config.processes > 1:
        raise ValueError("--processes takes only 1 yet: this version of the gateway is one process.")
    if config.config is not None:
        raise ValueError("--config is not available yet: use flags or PACKRELAY_* variables.")


def _has_workers(config: "GatewayConfig") -> None:
    for url in config.workers():
        if not _is_worker_url(url):
            raise ValueError(f"--worker and its kind take a URL such as http://HOST:PORT, not {url!r}.")
    if bool(config.context_worker) is not bool(config.generation_worker):
        raise ValueError("--context-worker and --generation-worker go together: give at least one of each.")
    if not config.workers():
        raise ValueError("There is no worker: give --worker, or --context-worker and --generation-worker.")


def _is_worker_url(url: str) -> bool:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        return False
    named = parts.scheme in {"http", "https"} and bool(parts.hostname) and port != 0
    return named and not (parts.username or parts.password or parts.query or parts.fragment)


@Parameter(name="*", validator=_is_usable)
@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    """Everything packrelay-gateway can be told. Each field is a flag and a `PACKRELAY_*` variable; the flag wins."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: Port = 8000
    """Port to listen on; 0 picks a free one (the log's event `gateway.listening` names it)."""

    worker: Texts = ()
    """URL of a worker that does both legs. May be given several times; a variable separates them by spaces."""

    context_worker: Texts = ()
    """URL of a context (prefill) worker. May be given several times."""

    generation_worker: Texts = ()
    """URL of a generation (decode) worker. May be given several times."""

    link: Literal["http", "grpc"] = "http"
    """How the gateway speaks to the workers. grpc is not available yet."""

    processes: Positive = 1
    """Gateway processes on one socket. More than 1 is not available yet."""

    api_key_file: Path | None = None
    """File with the API keys that clients may use, one a line. Left out: no key is asked for."""

    config: Path | None = None
    """File with these settings. Not available yet."""

    router: Literal["least_loaded", "round_robin"] = "least_loaded"
    """How the worker of a leg is chosen."""

    schedule_style: Literal["context_first", "generation_first"] = "context_first"
    """Whether the generation leg starts after the context leg, or with it."""

    max_local_prefill_length: Count = 0
    """Prompts of at most this many tokens (estimated) skip the context leg. 0: none do."""

    retries: Count = 1
    """How many more attempts a request has after its first one failed before anything was relayed."""

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
