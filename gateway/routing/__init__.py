"""Which worker takes a request: one policy per module, by name."""

from gateway.routing.base import Policy
from gateway.routing.least_loaded import LeastLoaded
from gateway.routing.round_robin import RoundRobin

POLICIES: dict[str, type[LeastLoaded] | type[RoundRobin]] = {"round_robin": RoundRobin, "least_loaded": LeastLoaded}

__all__ = ["POLICIES", "Policy"]
