"""One open exchange with a worker: opened when it is first needed, and again after it has ended, never twice at once."""

import asyncio
from collections.abc import Awaitable, Callable
from random import uniform

from msgspec import Struct

from gateway.links.base import ConnectFailed
from gateway.links.exchange import Exchange, Heartbeat, Wire
from gateway.links.read_window import ReadWindow


class Pauses(Struct, frozen=True, kw_only=True):
    """How long to wait after a failed attempt, in seconds: doubled with each, up to `longest`, less up to half of it at random."""

    first: float = 0.05
    longest: float = 1.0
    attempt: float = 10.0
    """How long one attempt may take."""

    def after(self, failures: int) -> float:
        """The pause after so many failures in a row."""
        return min(self.first * 2.0 ** min(failures - 1, 16), self.longest) * uniform(0.5, 1.0)


class Dialler:
    """Opens wires and runs an exchange on each. Everybody who needs one at the same time waits for the same attempt."""

    def __init__(
        self,
        dial: Callable[[], Awaitable[Wire]],
        name: str,
        *,
        heartbeat: Heartbeat,
        window: ReadWindow,
        pauses: Pauses,
    ) -> None:
        self.current: Exchange | None = None
        self.dials = 0
        """Attempts so far."""
        self._dial = dial
        self._name = name
        self._heartbeat = heartbeat
        self._window = window
        self._pauses = pauses
        self._attempt: asyncio.Task[Exchange] | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._skipped_before = 0
        self._failures = 0
        self._not_before = 0.0
        self._closed = False

    @property
    def skipped_events(self) -> int:
        """Events of unknown tags, over all exchanges so far."""
        return self._skipped_before + (0 if self.current is None else self.current.skipped_events)

    async def exchange(self, deadline: float) -> Exchange:
        """The open exchange, by this time on the loop's clock. Raises ConnectFailed."""
        if self.current is not None and not self.current.ended:
            return self.current
        if self._closed:
            raise ConnectFailed(f"The link to {self._name} is closed.")
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._open(), name=f"dial-{self._name}")
            self._attempt.add_done_callback(self._attempted)
        # Waited for, not awaited: a caller who gives up does not end the attempt of the others.
        attempt = self._attempt
        await asyncio.wait({attempt}, timeout=max(deadline - asyncio.get_running_loop().time(), 0.0))
        if not attempt.done():
            raise ConnectFailed(f"{self._name} did not accept a channel in time.")
        if attempt.cancelled():
            raise ConnectFailed(f"The link to {self._name} is closed.")
        return attempt.result()

    async def close(self) -> None:
        """End the exchange, and the attempt to open one. A second call does nothing."""
        self._closed = True
        tasks = {*self._running, *({self._attempt} if self._attempt is not None else ())}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _open(self) -> Exchange:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(self._not_before - loop.time(), 0.0))
        self.dials += 1
        try:
            async with asyncio.timeout(self._pauses.attempt):
                wire = await self._dial()
        except (ConnectFailed, TimeoutError) as error:
            self._failed()
            raise ConnectFailed(str(error) or f"{self._name} did not accept a channel in time.") from error
        exchange = Exchange(wire, self._name, self._heartbeat, self._window)
        self.current = exchange
        running = asyncio.create_task(self._run(exchange, wire), name=f"exchange-{self._name}")
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return exchange

    async def _run(self, exchange: Exchange, wire: Wire) -> None:
        try:
            await exchange.run()
        finally:
            if self.current is exchange:
                self.current = None
            self._skipped_before += exchange.skipped_events
            if exchange.messages:
                self._failures = 0
            else:
                # Accepted, and then nothing came of it: that is no better than being refused.
                self._failed()
            await wire.close()

    def _failed(self) -> None:
        self._failures += 1
        self._not_before = asyncio.get_running_loop().time() + self._pauses.after(self._failures)

    def _attempted(self, attempt: "asyncio.Task[Exchange]") -> None:
        self._attempt = None
        if not attempt.cancelled():
            attempt.exception()  # Whoever waited has it; perhaps nobody did.
