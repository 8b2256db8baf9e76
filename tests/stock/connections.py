"""The open connections of a server, so that one can be reset as if the process had died."""

from collections.abc import Callable
from typing import Any

from fastapi import Request


class Connections:
    """The connections a server holds now, as `held` lists them."""

    def __init__(
        self, held: Callable[[], set[Any]]
    ) -> None:  # uvicorn's protocol classes: whichever parser is installed
        self._held = held

    def abort(self, http: Request) -> None:
        """Reset the connection a request came over."""
        client = (http.client.host, http.client.port) if http.client else None
        for protocol in list(self._held()):
            if protocol.client == client:
                protocol.transport.abort()
