"""The connections to one worker: dialled when none is free, the last used one first, closed before the worker closes them."""

import asyncio
import ssl
from time import monotonic

from gateway.links.base import ConnectFailed
from gateway.links.connection import Connection
from gateway.links.read_window import ReadWindow


class Pool:
    """Bounded by what is in flight: an idle connection lives `max_idle_seconds`, and only as many exist as were busy at once."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        max_idle_seconds: float,
        max_reply_bytes: int,
        window: ReadWindow,
    ) -> None:
        self._name = name
        self._host = host
        self._port = port
        self._tls = tls
        self._max_idle_seconds = max_idle_seconds
        self._max_reply_bytes = max_reply_bytes
        self._window = window
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []  # the oldest first
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self._emptied: asyncio.Event | None = None

    @property
    def open_connections(self) -> int:
        """All connections that exist, those being dialled included."""
        return len(self._open)

    @property
    def idle_connections(self) -> int:
        """Those of them that wait for a request."""
        return len(self._idle)

    def take(self, now: float) -> Connection | None:
        """The idle connection that was used last, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable() and now - connection.parked_at < self._max_idle_seconds:
                return connection
            connection.abort()
        return None

    async def dial(self, deadline: float) -> Connection:
        """A new connection, by this time on the monotonic clock. Raises ConnectFailed. A cancelled dial leaves nothing behind."""
        if self._closed:
            raise ConnectFailed(f"The link to {self._name} is closed.")
        connection = Connection(self, self._name, self._max_reply_bytes, self._window)
        self._open.add(connection)
        try:
            await self._connect(connection, deadline)
        except BaseException:
            connection.abort()
            self.forget(connection)
            raise
        return connection

    async def _connect(self, connection: Connection, deadline: float) -> None:
        name = self._host if self._tls else None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline):
                await loop.create_connection(
                    lambda: connection, self._host, self._port, ssl=self._tls, server_hostname=name
                )
        except TimeoutError as error:
            raise ConnectFailed(f"{self._name} did not accept a connection in time.") from error
        except (OSError, UnicodeError) as error:
            raise ConnectFailed(f"{self._name} could not be connected to: {error}.") from error
        if not connection.is_usable():
            raise ConnectFailed(f"{self._name} closed the connection at once.")

    def park(self, connection: Connection) -> None:
        """Keep a connection whose exchange is over."""
        if self._closed:
            connection.abort()
            return
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(self._max_idle_seconds, self._sweep)

    def forget(self, connection: Connection) -> None:
        """A connection is gone. It may be told of twice, when a dial fails late."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._emptied is not None and not self._open:
            self._emptied.set()

    async def close(self) -> None:
        """End every connection and wait until the loop has let go of them."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._emptied = asyncio.Event()
        for connection in list(self._open):
            if not connection.is_usable():
                # Still being dialled, or closing already: it ends by itself, and nobody need wait for that.
                self._open.discard(connection)
            connection.end()
        if self._open:
            await self._emptied.wait()

    def _sweep(self) -> None:
        """Close what was idle for too long, and come back when the next one will have been."""
        self._sweeper = None
        latest = monotonic() - self._max_idle_seconds
        while self._idle and self._idle[0].parked_at <= latest:
            self._idle.pop(0).abort()
        if self._idle:
            loop = asyncio.get_running_loop()
            self._sweeper = loop.call_at(self._idle[0].parked_at + self._max_idle_seconds, self._sweep)
