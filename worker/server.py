"""The process around one engine: load it, listen, serve, and stop in order.

The socket is bound first, so that a taken port fails before a model is loaded, but it listens only once the engine runs: whoever
can connect is served.
"""

import asyncio
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import structlog
import uvicorn
from fastapi import FastAPI

from worker.app import create_app
from worker.channel_start import bind_channel, start_channel
from worker.cluster import registrar_of
from worker.config import WorkerConfig
from worker.descriptors import Room, room
from worker.engines import create_engine
from worker.engines.base import Engine, EngineFacts
from worker.handoff import HandoffClient, Reason
from worker.handoff_store import HandoffStore
from worker.legs import Handoffs
from worker.metrics import Counters
from worker.operations import Front
from worker.protocol import WorkerProtocol
from worker.service import Service
from worker.tls import fetching_context, serving_context

if TYPE_CHECKING:  # they import grpc and aiohttp, which not every worker has
    from worker.channel import ChannelServer
    from worker.registration import Registrar

BACKLOG: Final = 2048
CONNECTIONS_SECONDS: Final = 2
"""How long connections may take to close once nothing is served any more."""
ENGINE_SECONDS: Final = 10.0
"""How long an engine may take to end."""

_log = structlog.get_logger(__name__)


class Life:
    """Where a worker stands. The first SIGINT or SIGTERM asks for an orderly end, the second one for a quick one."""

    def __init__(self) -> None:
        self.listening = asyncio.Event()
        self.stopping = asyncio.Event()
        self.hurry = asyncio.Event()

    def listen_to_signals(self) -> None:
        """From here on, until the process ends."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)

    def stop(self) -> None:
        """What a signal does."""
        if self.stopping.is_set():
            self.hurry.set()
        self.stopping.set()


class Server(uvicorn.Server):
    """Serves one app until its life ends. That end is an ordered list, each step bounded."""

    def __init__(
        self,
        app: FastAPI,
        service: Service,
        config: WorkerConfig,
        life: Life,
        tls: ssl.SSLContext | None = None,
        channel: "ChannelServer | None" = None,
        registrar: "Registrar | None" = None,
    ) -> None:
        places = room()
        super().__init__(
            uvicorn.Config(
                app,
                http=_protocol_for(places),
                backlog=min(places.refused, BACKLOG),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                # Named as an int, and used as what it is: the delay of a timer.
                timeout_keep_alive=config.keep_alive_timeout,  # type: ignore[arg-type]
                timeout_graceful_shutdown=CONNECTIONS_SECONDS,
            )
        )
        self._service = service
        self._grace = config.grace
        self._tls = tls
        self._life = life
        self._channel = channel
        self._registrar = registrar

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: signals are `Life`'s."""
        yield

    async def main_loop(self) -> None:
        """Wait for the end of the life; uvicorn's own loop looks for it ten times a second."""
        while not self._life.stopping.is_set():
            await self.on_tick(0)
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._life.stopping.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so: `worker.listening` names the real port."""
        self.config.ssl = self._tls
        await super().startup(sockets)
        self._life.listening.set()
        if self._registrar is not None:
            self._registrar.start()
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        _log.info(
            "worker.listening",
            host=host,
            port=port,
            grpc_port=self._channel.port if self._channel else None,
            model=self._service.model,
            url=self._service.handoffs.base_url,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """The order: not registered, not ready, running requests, the rest told and aborted, kept states, connections."""
        if self._registrar is not None:
            await self._registrar.close()
        self._service.drain()
        if self._channel is not None:
            await self._channel.drain()
        # The listener stays open meanwhile: new requests hear 503, and other workers fetch the states made for them.
        await self._service.finish(self._grace, self._life.hurry)
        if self._channel is not None:
            await self._channel.stop()
        await super().shutdown(sockets)


def _protocol_for(places: Room) -> type[WorkerProtocol]:
    """The protocol with so many places."""
    numbers = {"max_connections": places.served, "most_connections": places.served + places.refused}
    return type("ConfiguredProtocol", (WorkerProtocol,), numbers)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound but not listening. Raises OSError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP: asyncio switches Nagle's algorithm off only on what says so (uvloop always does).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.set_inheritable(False)
    return listener


async def run_worker(config: WorkerConfig, listener: socket.socket) -> None:
    """Make the engine and serve it on a bound socket until a signal. Raises EngineError when it cannot be loaded."""
    life = Life()
    life.listen_to_signals()
    await serve_engine(create_engine(config.engine, config.model, config.engine_options()), config, listener, life)


async def serve_engine(engine: Engine, config: WorkerConfig, listener: socket.socket, life: Life) -> None:
    """Start an engine, serve it until its life is to end, close it.

    Raises EngineError, ChannelFailed, RegistrationRefused or TlsRefused when that cannot be.
    """
    tls = serving_context(config)
    registrar = registrar_of(config, listener.getsockname()[1])
    channel = bind_channel(config)
    try:
        facts = await _facts(engine, life)
        if facts is not None:
            service = _service(config, engine, facts, listener)
            front = Front.of(config, channel.port if channel else None)
            if channel is not None:
                await start_channel(channel, service, front)
            server = Server(create_app(service, front), service, config, life, tls, channel, registrar)
            await server.serve(sockets=[listener])
    finally:
        if channel is not None:
            await channel.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(ENGINE_SECONDS):
                await engine.close()
        _log.info("worker.stopped")


async def _facts(engine: Engine, life: Life) -> EngineFacts | None:
    """What a started engine is; None if the process is to stop while it loads."""
    loading = asyncio.create_task(engine.start(), name="engine-start")
    stopping = asyncio.create_task(life.stopping.wait(), name="stopping")
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if loading.done():
        return loading.result()
    loading.cancel()
    await asyncio.wait({loading}, timeout=ENGINE_SECONDS)
    return None


def _service(config: WorkerConfig, engine: Engine, facts: EngineFacts, listener: socket.socket) -> Service:
    counters = Counters()

    def dropped(reason: Reason) -> None:
        counters.handoff_errors[reason] += 1

    handoffs = Handoffs(
        facts,
        HandoffStore(config.handoff_bytes, config.handoff_seconds, dropped),
        HandoffClient(config.internal_key, frozenset(config.peer), config.handoff_bytes, fetching_context(config)),
        config.base_url(listener.getsockname()[1]),
        counters,
    )
    model = config.served_model_name or facts.model
    return Service(engine, facts, handoffs, counters, model=model, max_requests=config.max_requests)
