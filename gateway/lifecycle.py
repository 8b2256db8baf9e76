"""Whether the gateway serves, and how it stops.

Shutdown, in order (`Server.shutdown` in gateway/server.py runs it):

1. not ready        /health/ready and /health answer 503, new requests for generation get 503 and a closed connection; the listener
                    stays open to say so
2. drain            what runs may finish, up to the grace
3. farewell         the rest is ended: an error record in a stream, a 503 where nothing was sent yet; their legs are aborted
4. connections      the listener closes, then the clients' connections (uvicorn)
5. workers          the links to the workers close (the app's lifespan)

A second signal skips the wait of step 2. Every step is bounded, and doing it all twice does no harm.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway.exchange import Exchange
from gateway.relay import FAREWELL_SECONDS
from schemas.openai.errors import ErrorKind, ServingError

RETRY_AFTER_SECONDS: Final = 1.0


class Lifecycle:
    """Knows every exchange in flight. `can_serve` is asked for the workers' part of being ready; `grace` is in seconds."""

    def __init__(self, can_serve: Callable[[], bool], grace: float) -> None:
        self._can_serve = can_serve
        self._grace = grace
        self._exchanges: set[Exchange] = set()
        self._started = False
        self._hurried = False
        self._wait_over = asyncio.Event()
        self.draining = False

    @property
    def in_flight(self) -> int:
        """How many exchanges have not ended."""
        return len(self._exchanges)

    def ready(self) -> bool:
        """Whether requests are wanted here."""
        return self._started and not self.draining and self._can_serve()

    def start(self) -> None:
        """The workers are known; from here on requests are served."""
        self._started = True

    def begin(self, exchange: Exchange) -> None:
        """An exchange begins."""
        self._exchanges.add(exchange)

    def finish(self, exchange: Exchange) -> None:
        """An exchange has ended."""
        self._exchanges.discard(exchange)
        if self.draining and not self._exchanges:
            self._wait_over.set()

    def stop_accepting(self) -> None:
        """Not ready any more. Called at once when the signal comes."""
        self.draining = True

    def hurry(self) -> None:
        """Do not wait any longer."""
        self._hurried = True
        self._wait_over.set()

    async def drain(self) -> None:
        """Steps 1 to 3: returns when nothing is in flight, or when what is left does not end within a farewell."""
        self.stop_accepting()
        if not self._hurried:
            await self._until_idle(self._grace)
        for exchange in list(self._exchanges):
            exchange.end(shutting_down())
        # An exchange needs up to a farewell to tell its client, and a little to abort its legs.
        await self._until_idle(2 * FAREWELL_SECONDS)

    async def _until_idle(self, seconds: float) -> None:
        self._wait_over.clear()
        if self._exchanges:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wait_over.wait()


def shutting_down() -> ServingError:
    """What requests are told that come, or are not finished, when the gateway stops."""
    message = "The server is shutting down."
    return ServingError(ErrorKind.UNAVAILABLE, message, code="shutting_down", retry_after=RETRY_AFTER_SECONDS)
