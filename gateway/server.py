"""The server process: uvicorn, told to stop our way."""

import asyncio
import ctypes
import gc
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import structlog
import uvicorn
from starlette.types import ASGIApp

from gateway.config import GatewayConfig
from gateway.lifecycle import Lifecycle
from gateway.protocol import GatewayProtocol
from gateway.room import room_in

BACKLOG: Final = 2048
GARBAGE_THRESHOLD: Final = 20_000
"""New containers, less those freed, until the collector looks at the youngest."""
KEPT_BYTES: Final = 128 << 20
LARGEST_KEPT_BYTES: Final = 16 << 20
"""Freed memory that is kept, and the largest single piece of it."""
CONNECTIONS_TIMEOUT_SECONDS: Final = 3
"""How long uvicorn waits for connections to close, once nothing is in flight any more."""

# Names of glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3

_log = structlog.get_logger(__name__)


class ListenFailed(Exception):
    """The address cannot be listened on. The message is for the operator."""


class Server(uvicorn.Server):
    """On SIGTERM or SIGINT: our shutdown (gateway/lifecycle.py), then uvicorn's; a second signal skips the wait for streams."""

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(config)
        self._tls = tls
        self._lifecycle = lifecycle

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals while serving. Unlike uvicorn's own, it does not raise them again: an orderly stop is a success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Begin to stop; called again, stop without waiting for what is in flight."""
        if self.should_exit:
            self._lifecycle.hurry()
        self._lifecycle.stop_accepting()
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the app, then take the connections that wait in the listener, and say where it is."""
        self.config.ssl = self._tls
        await super().startup(sockets)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            scheme = "https" if self.config.ssl else "http"
            url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
            _log.info("gateway.listening", url=url, host=host, port=port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Steps 1 to 3 of the lifecycle, then uvicorn closes listener, connections and app. Bounded."""
        _log.info("gateway.draining", in_flight=self._lifecycle.in_flight)
        await self._lifecycle.drain()
        await super().shutdown(sockets)
        _log.info("gateway.stopped")


def serve(app: ASGIApp, config: GatewayConfig, lifecycle: Lifecycle, listener: socket.socket | None = None) -> int:
    """Serve until a signal comes, on this socket if there is one. Answers the exit status. Raises ListenFailed."""
    tls = tls_of(config)
    _raise_descriptor_limit()
    _settle_collector()
    _keep_freed_memory()
    listener = listener or listen(config.host, config.port)
    server = Server(settings_of(app, config), lifecycle, tls)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listener]))
    return 0 if server.started else 1


def listen_together(host: str, port: int, count: int) -> list[socket.socket]:
    """So many listening sockets on one port: the kernel spreads connections over them. Raises ListenFailed."""
    first = listen(host, port, shared=True)
    chosen = first.getsockname()[1]
    return [first, *(listen(host, chosen, shared=True) for _ in range(count - 1))]


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket; a shared one lets others have the same port. Raises ListenFailed."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=shared)
    except OSError as error:
        raise ListenFailed(f"--host {host} --port {port}: cannot listen there: {error.strerror or error}.") from error


def tls_of(config: GatewayConfig) -> ssl.SSLContext | None:
    """What HTTPS is served with, None for plain HTTP. Raises ListenFailed for files that cannot be used."""
    if config.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
        if config.tls_ca is not None:
            context.load_verify_locations(config.tls_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # An ssl.SSLError is one too.
        files = ", ".join(str(path) for path in (config.tls_cert, config.tls_key, config.tls_ca) if path is not None)
        raise ListenFailed(
            f"--tls-cert, --tls-key, --tls-ca: {files} cannot be used: {error.strerror or error}."
        ) from error
    return context


def settings_of(app: ASGIApp, config: GatewayConfig) -> uvicorn.Config:
    """The gateway's settings as uvicorn has them."""
    room = room_in(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    # uvicorn calls it, as it would call the class.
    protocol: Any = partial(GatewayProtocol, room=room, head_timeout=config.head_timeout)
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=min(room.refused, BACKLOG),
        timeout_keep_alive=config.keep_alive_timeout,
        timeout_graceful_shutdown=CONNECTIONS_TIMEOUT_SECONDS,
    )


def _settle_collector() -> None:
    """Keep the garbage collector from walking what lives as long as the process, and from coming by every few requests.

    Measured on small requests: with Python's own thresholds it takes a tenth of the processor time. What a request leaves behind
    is freed by counting references; the collector is for the rare cycle (an exception that was handled).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)


def _keep_freed_memory() -> None:
    """Have the C library keep what large bodies were held in for the next ones, instead of giving it back after each.

    Getting it again page by page costs more than everything else that is done with a body of 1 MB (measured: 0.9 of 2.3 ms). The
    price is memory: up to `KEPT_BYTES` stay with the process. Does nothing where the C library is not glibc.
    """
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TOP_PAD, KEPT_BYTES // 8)


def _raise_descriptor_limit() -> None:
    """Thousands of streams are thousands of sockets: take what the system allows us, instead of the low default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
