"""One worker as the gateway knows it: what it is, whether it can be used, and what it is doing."""

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from time import monotonic

import structlog

from gateway.breaker import Breaker
from gateway.links.base import Link
from schemas.dialect import STOCK, Dialect
from schemas.openai.models import Model

_log = structlog.get_logger(__name__)


class Role(StrEnum):
    """Which legs a worker is given."""

    CONTEXT = "context"
    GENERATION = "generation"
    BOTH = "both"


class LegName(StrEnum):
    """What a worker does for one request."""

    AGGREGATED = "aggregated"
    CONTEXT = "context"
    GENERATION = "generation"


class Outcome(StrEnum):
    """How a leg ended, as the breaker and the metrics see it."""

    SUCCESS = "success"
    FAILURE = "failure"
    """The worker's own fault: counts towards opening its breaker."""
    SUSPECT = "suspect"
    """A stock worker's 400 that may be its own fault (it answers its faults so): counts like a failure until a success."""
    NEUTRAL = "neutral"
    """The client's mistake, or back-pressure: says nothing about the worker."""
    CANCELLED = "cancelled"
    """The client went away, or the other leg failed."""


class Worker:
    """One worker of the fleet. `active` is its legs in flight from this process; `legs` counts how those before ended."""

    def __init__(self, index: int, role: Role, link: Link, clock: Callable[[], float] = monotonic) -> None:
        self.index = index
        self.role = role
        self.link = link
        self.up = False
        self.misses = 0
        """Health checks failed in a row."""
        self.checks = 0
        self.identity_checked = False
        """Whether what it serves and speaks was asked since something last cast doubt on it."""
        self._models: list[Model] = []
        self.names: frozenset[str] = frozenset()
        """Of its models."""
        self.engine = "stock"
        self.dialect: Dialect = STOCK
        self.handoff_endpoint: dict[str, object] = {}
        """The keys of `/server_info.disaggregated_params`: where a generation-first leg finds this context worker."""
        self.breaker = Breaker(clock)
        self._clock = clock
        self._not_before = 0.0
        self.active = 0
        self.idle = asyncio.Event()
        """Set while no leg is in flight here."""
        self.idle.set()
        self.legs: Counter[tuple[LegName, Outcome]] = Counter()

    @property
    def models(self) -> list[Model]:
        """What it serves; replaced as a whole when that changes."""
        return self._models

    @models.setter
    def models(self, models: list[Model]) -> None:
        self._models = models
        self.names = frozenset(model.id for model in models)

    def serves(self, model: str) -> bool:
        """Whether it has this model."""
        return model in self.names

    def can_replace(self, other: "Worker", model: str) -> bool:
        """Whether a request for this model that the other refused may be sent here instead."""
        alike = self.role is other.role and self.engine == other.engine
        return self is not other and alike and self.serves(model) and self.usable()

    def usable(self) -> bool:
        """Whether work may be sent: its last health check passed and its breaker admits."""
        return self.up and self.breaker.admits()

    def ask_not_before(self, seconds: float) -> None:
        """It said Retry-After: send nothing for so long. Never shortens what it said before."""
        self._not_before = max(self._not_before, self._clock() + seconds)

    def ask_again(self) -> None:
        """It was started anew: what it said before does not hold any more."""
        self._not_before = 0.0

    @property
    def resting(self) -> float:
        """The seconds until it wants to be asked again; 0 when it may be asked."""
        return max(self._not_before - self._clock(), 0.0) if self._not_before else 0.0

    def unreachable(self) -> None:
        """A connection was refused: it gets no work until its next health check, which need not fail a second time."""
        if self.up:
            _log.info("worker.unreachable", worker=self.index, url=self.link.url, role=self.role)
        self.up = False

    def begin(self) -> None:
        """A leg starts here."""
        if not self.active:
            self.idle.clear()
        self.active += 1
        self.breaker.begin()

    def end(self, leg: LegName, outcome: Outcome) -> None:
        """A leg ended here."""
        self.active -= 1
        if self.active == 0:
            self.idle.set()
        self.legs[leg, outcome] += 1
        if outcome is Outcome.SUCCESS:
            self.breaker.success()
        elif outcome in {Outcome.FAILURE, Outcome.SUSPECT}:
            self.breaker.failure()
        else:
            self.breaker.neutral()
