"""Each worker in turn."""

from collections.abc import Sequence

from gateway.routing.base import W


class RoundRobin:
    """The next worker after the one chosen last, by place in the fleet: a worker that comes or goes does not reset the turn."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, candidates: Sequence[W]) -> W:
        """The first candidate behind the last choice, or the first of all."""
        chosen = candidates[0]
        for worker in candidates:
            if worker.index > self._last:
                chosen = worker
                break
        self._last = chosen.index
        return chosen
