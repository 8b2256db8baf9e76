"""What a discovery is: it finds workers and adds them to a fleet, and removes those that are gone, for as long as it runs."""

from collections.abc import Sequence
from typing import Protocol

from schemas.cluster import Registration


class Discovery(Protocol):
    """Runs beside the fleet; a failure of what it asks never takes a worker away that still answers."""

    def registered(self) -> Sequence[Registration]:
        """The workers known now, prepared or not."""
        ...

    async def start(self) -> None:
        """Find who is there, within a bounded time, and keep looking in the background."""
        ...

    async def close(self) -> None:
        """Stop looking. A second call does nothing."""
        ...
