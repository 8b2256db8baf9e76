"""An ASGI app on a real socket, inside the test's own event loop."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import uvicorn

ENDING_S = 2.0
"""How long an app may take to notice that its clients are gone."""


class _Server(uvicorn.Server):
    """Leaves signals to the tests, and is told of its end instead of looking for it ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self.ended = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Wait for the end."""
        await self.on_tick(0)
        await self.ended.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Reset every connection, so that nothing is waited for but what the app does about it."""
        for server in self.servers:
            server.close()
        for protocol in list(self.server_state.connections):
            if protocol.transport is not None:
                protocol.transport.abort()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=ENDING_S)
        await self.lifespan.shutdown()


class Listening:
    """Serves an app while its context is open; `settings` are uvicorn's. Port 0 is a free one."""

    def __init__(self, app: Any, port: int = 0, **settings: Any) -> None:  # uvicorn's own types, passed through
        self._app = app
        self._port = port
        self._settings = {"log_config": None, "access_log": False} | settings
        self.connections: set[Any] = set()
        """The open connections: uvicorn's protocols, of whichever parser is installed."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        # Named as TCP, or asyncio does not switch off Nagle's algorithm on what it accepts.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._server = _Server(uvicorn.Config(self._app, **self._settings))
        self.connections = self._server.server_state.connections
        self._task = asyncio.create_task(self._server.serve([listener]), name="test server")
        await self._server.listening.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End as a killed process does: every connection is reset, nobody is told. A second call does nothing."""
        self._server.ended.set()
        await self._task
