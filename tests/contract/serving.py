"""Our own processes as the contract tests need them: all parts, a real socket, the test's event loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.admission import Admission
from gateway.api.parts import Parts
from gateway.app import create_app
from gateway.auth import ApiKeys
from gateway.cli import limits_of, orchestrator_of
from gateway.config import GatewayConfig
from gateway.door import Door
from gateway.lifecycle import Lifecycle
from gateway.metrics import Metrics
from gateway.protocol import GatewayProtocol
from gateway.scrape import GatewayCollector, Scrape
from tests.listening import Listening


@asynccontextmanager
async def serving_gateway(**settings: Any) -> AsyncIterator[str]:
    """The URL of a gateway with these settings; its workers have been asked once when it is there."""
    config = GatewayConfig(**settings)
    orchestrator, admission, metrics = orchestrator_of(config), Admission(limits_of(config)), Metrics()
    lifecycle = Lifecycle(orchestrator.can_serve, config.grace)
    parts = Parts(config=config, backend=orchestrator, admission=admission, lifecycle=lifecycle, metrics=metrics)
    collector = GatewayCollector(
        metrics,
        admission,
        lambda: orchestrator.fleet.workers,
        retries=lambda: orchestrator.retries,
        retries_refused=lambda: orchestrator.budget.refused,
    )
    door = Door(create_app(parts, Scrape(collector)), parts, ApiKeys())
    async with Listening(door, http=GatewayProtocol, ws="none", lifespan="on", server_header=False) as listening:
        yield listening.url
