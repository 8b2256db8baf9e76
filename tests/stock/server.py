"""A stock worker on a real socket, inside the test's own event loop."""

from types import TracebackType
from typing import Any, Self

from tests.listening import Listening
from tests.stock.app import StockApp
from tests.stock.behaviour import Behaviour
from tests.stock.connections import Connections
from tests.stock.disagg import Ledger
from tests.stock.legs import Legs
from tests.stock.recording import Recorded
from tests.stock.versions import NEWEST, Version

KEEP_ALIVE_S = 5


class StockWorker:
    """A stand-in that listens while its context is open.

    Workers of one group share a `ledger`, as the two legs of a request meet there; `key` is `internal_request_auth_key`;
    `server_keys` is what `/server_info` says for generation-first requests.
    """

    def __init__(
        self,
        *,
        model: str = "test-model",
        behaviour: Behaviour | None = None,
        ledger: Ledger | None = None,
        key: str | None = None,
        server_keys: dict[str, Any] | None = None,
        port: int = 0,
        version: Version = NEWEST,
    ) -> None:
        self.behaviour = behaviour or Behaviour()
        self.ledger = ledger or Ledger()
        connections = Connections(lambda: self._listening.connections)
        self._app = StockApp(Legs(self.behaviour, self.ledger, key, server_keys or {}, version), model, connections)
        self._listening = Listening(self._app.asgi(), port, timeout_keep_alive=KEEP_ALIVE_S)

    @property
    def requests(self) -> list[Recorded]:
        """Every inference request so far, in the order of their arrival."""
        return self._app.requests

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._listening.url

    async def __aenter__(self) -> Self:
        await self._listening.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End the process: every connection is reset, nobody is told. A second call does nothing."""
        self.behaviour.resume.set()
        await self._listening.stop()
