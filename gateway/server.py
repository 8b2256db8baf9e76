"""The server process: uvicorn, told to stop our way."""

import asyncio
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import structlog
import uvicorn
from starlette.types import ASGIApp

from gateway.config import GatewayConfig
from gateway.lifecycle import Lifecycle
from gateway.protocol import GatewayProtocol

BACKLOG: Final = 2048
CONNECTIONS_TIMEOUT_SECONDS: Final = 3
"""How long uvicorn waits for connections to close, once nothing is in flight any more."""

_log = structlog.get_logger(__name__)


class ListenFailed(Exception):
    """The address cannot be listened on. The message is for the operator."""


class Server(uvicorn.Server):
    """On SIGTERM or SIGINT: our shutdown (gateway/lifecycle.py), then uvicorn's; a second signal skips the wait for streams."""

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle) -> None:
        super().__init__(config)
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
        await super().startup(sockets)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            _log.info("gateway.listening", url=url, host=host, port=port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Steps 1 to 3 of the lifecycle, then uvicorn closes listener, connections and app. Bounded."""
        _log.info("gateway.draining", in_flight=self._lifecycle.in_flight)
        await self._lifecycle.drain()
        await super().shutdown(sockets)
        _log.info("gateway.stopped")


def serve(app: ASGIApp, config: GatewayConfig, lifecycle: Lifecycle) -> int:
    """Serve until a signal comes. Answers the exit status. Raises ListenFailed."""
    _raise_descriptor_limit()
    listener = listen(config.host, config.port)
    server = Server(settings_of(app, config), lifecycle)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listener]))
    return 0 if server.started else 1


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ListenFailed."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ListenFailed(f"--host {host} --port {port}: cannot listen there: {error.strerror or error}.") from error


def settings_of(app: ASGIApp, config: GatewayConfig) -> uvicorn.Config:
    """The gateway's settings as uvicorn has them."""
    protocol = type("ConfiguredProtocol", (GatewayProtocol,), {"head_timeout": config.head_timeout})
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
        backlog=BACKLOG,
        timeout_keep_alive=config.keep_alive_timeout,
        timeout_graceful_shutdown=CONNECTIONS_TIMEOUT_SECONDS,
    )


def _raise_descriptor_limit() -> None:
    """Thousands of streams are thousands of sockets: take what the system allows us, instead of the low default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
