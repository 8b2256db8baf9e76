"""The worker with the fewest requests in flight from this process; equals take turns."""

from collections.abc import Sequence

from gateway.routing.base import W
from gateway.routing.round_robin import RoundRobin


class LeastLoaded:
    """Fewest requests in flight first. Other gateways' requests are not seen: with many gateways it evens out by chance."""

    def __init__(self) -> None:
        self._turns = RoundRobin()

    def choose(self, candidates: Sequence[W]) -> W:
        """The least loaded candidate, in turn among equals."""
        fewest = min([worker.active for worker in candidates])
        return self._turns.choose([worker for worker in candidates if worker.active == fewest])
