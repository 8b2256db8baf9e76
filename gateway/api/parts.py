"""What the endpoints are made of."""

from dataclasses import dataclass, field
from typing import Protocol

from gateway.admission import Admission
from gateway.call import Answer, Call
from gateway.config import GatewayConfig
from gateway.lifecycle import Lifecycle
from gateway.metrics import Metrics
from gateway.relay import EventStream
from schemas.cluster import ClusterInfo
from schemas.openai.models import Model


class Backend(Protocol):
    """Whoever answers requests: the orchestrator."""

    async def answer(self, call: Call) -> Answer | EventStream:
        """A whole answer, or a stream that the caller closes. Raises ServingError; cancelling it aborts what was begun."""
        ...

    def models(self) -> list[Model]:
        """What can be asked for."""
        ...

    def serves(self, model: str) -> bool:
        """Whether some worker has this model."""
        ...

    def can_serve(self) -> bool:
        """Whether a request would find its workers now."""
        ...

    def cluster(self) -> ClusterInfo:
        """Which workers there are, and whether they are enough."""
        ...

    async def start(self) -> None:
        """Get to know the workers."""
        ...

    async def close(self) -> None:
        """Let go of them; requests have ended before."""
        ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """One of each per process."""

    config: GatewayConfig
    backend: Backend
    admission: Admission
    lifecycle: Lifecycle
    metrics: Metrics = field(default_factory=Metrics)
