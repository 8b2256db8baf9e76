"""What is counted, and what is a state and not a count, as a Prometheus server reads it."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, runtime_checkable

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.breaker import Breaker, BreakerState
from gateway.metrics import Histogram, Metrics
from gateway.siblings import Siblings, added

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "packrelay_gateway"


@runtime_checkable
class ReadsEvents(Protocol):
    """A link that reads typed events, as the channel's does; one that relays SSE unread has none to skip."""

    @property
    def skipped_events(self) -> int:
        """Events of tags that are not known here, since the link was made."""
        ...


class WorkerState(Protocol):
    """A worker as the metrics see it: its place in the fleet, role, link, breaker, legs in flight, and how those before ended."""

    @property
    def index(self) -> int: ...

    @property
    def role(self) -> str: ...

    @property
    def link(self) -> object: ...

    @property
    def up(self) -> bool: ...

    @property
    def breaker(self) -> Breaker: ...

    @property
    def active(self) -> int: ...

    @property
    def legs(self) -> Mapping[Any, int]:
        """By (leg, outcome), both from closed sets of strings."""
        ...


class AdmissionState(Protocol):
    """Admission as the metrics see it. `refusals` is by reason, from a closed set of strings."""

    @property
    def in_flight(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def body_bytes(self) -> int: ...

    @property
    def refusals(self) -> Mapping[Any, int]: ...


class GatewayCollector(Collector):
    """Reads the counters, and asks for what is a state and not a count.

    `workers` answers the fleet as it is now, `retries` how many further attempts were made, `retries_refused` how many were not,
    because all requests together had made too many.
    """

    def __init__(
        self,
        metrics: Metrics,
        door: AdmissionState,
        workers: Callable[[], Iterable[WorkerState]],
        retries: Callable[[], int],
        retries_refused: Callable[[], int],
    ) -> None:
        self._metrics = metrics
        self._door = door
        self._workers = workers
        self._retries = retries
        self._retries_refused = retries_refused

    def collect(self) -> Iterable[Metric]:
        """All samples, now."""
        yield self._requests()
        yield from self._histograms()
        yield from self._totals()
        yield from self._states()
        yield from self._fleet()

    def _requests(self) -> Metric:
        labels = ["endpoint", "status", "outcome"]
        family = CounterMetricFamily(
            f"{PREFIX}_requests", "Requests ended, by endpoint, status, outcome.", labels=labels
        )
        for values, count in self._metrics.requests.items():
            family.add_metric(values, count)
        return family

    def _histograms(self) -> Iterable[Metric]:
        metrics = self._metrics
        yield _histogram(
            "request_seconds", "Requests for generation, start to end, refused ones too.", metrics.durations
        )
        yield _histogram("time_to_first_token_seconds", "Streams: request to first event sent.", metrics.first_token)
        yield _histogram("inter_token_seconds", "Streams: time per event after the first.", metrics.token_gaps)
        yield _histogram("event_loop_lag_seconds", "How late the event loop is.", metrics.loop_lag)

    def _totals(self) -> Iterable[Metric]:
        ignored = self._metrics.ignored_fields
        yield CounterMetricFamily(f"{PREFIX}_ignored_fields", "Request fields nobody knows.", value=ignored)
        yield CounterMetricFamily(f"{PREFIX}_retries", "Attempts after the first.", value=self._retries())
        refused = self._retries_refused()
        yield CounterMetricFamily(
            f"{PREFIX}_retries_refused", "Attempts the fleet's budget did not allow.", value=refused
        )
        family = CounterMetricFamily(f"{PREFIX}_refusals", "Requests not let in, by reason.", labels=["reason"])
        for reason, count in self._door.refusals.items():
            family.add_metric([str(reason)], count)
        yield family

    def _states(self) -> Iterable[Metric]:
        door = self._door
        yield GaugeMetricFamily(f"{PREFIX}_in_flight", "Requests being served.", value=door.in_flight)
        yield GaugeMetricFamily(f"{PREFIX}_waiting", "Requests waiting to be served.", value=door.waiting)
        yield GaugeMetricFamily(f"{PREFIX}_tasks", "Tasks of the event loop.", value=_tasks())
        yield GaugeMetricFamily(f"{PREFIX}_body_bytes", "Bytes of request bodies held.", value=door.body_bytes)

    def _fleet(self) -> Iterable[Metric]:
        of_worker = ["worker", "role"]
        up = GaugeMetricFamily(f"{PREFIX}_worker_up", "Whether the last health check passed.", labels=of_worker)
        open_ = GaugeMetricFamily(
            f"{PREFIX}_worker_breaker_open", "Whether it failed so often that it gets trials only.", labels=of_worker
        )
        active = GaugeMetricFamily(f"{PREFIX}_worker_legs_in_flight", "Legs in flight.", labels=of_worker)
        of_leg = ["worker", "leg", "outcome"]
        legs = CounterMetricFamily(f"{PREFIX}_worker_legs", "Legs ended, by leg and outcome.", labels=of_leg)
        skipped = CounterMetricFamily(
            f"{PREFIX}_skipped_events", "Events of unknown tags, passed over.", labels=of_worker
        )
        for worker in self._workers():
            values = [str(worker.index), str(worker.role)]
            up.add_metric(values, float(worker.up))
            open_.add_metric(values, float(worker.breaker.state is not BreakerState.CLOSED))
            active.add_metric(values, worker.active)
            if isinstance(worker.link, ReadsEvents):
                skipped.add_metric(values, worker.link.skipped_events)
            for (leg, outcome), count in worker.legs.items():
                legs.add_metric([str(worker.index), str(leg), str(outcome)], count)
        return [up, open_, active, legs, skipped]


def _tasks() -> int:
    """How many tasks there are; none where no loop runs."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


def _histogram(name: str, help_: str, histogram: Histogram) -> Metric:
    """A histogram's sample: Prometheus wants cumulative counts."""
    buckets = []
    below = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), below))
    return HistogramMetricFamily(f"{PREFIX}_{name}", help_, buckets=buckets, sum_value=histogram.total)


class Scrape:
    """The page a Prometheus server reads: ours, and what the process uses; with `siblings`, the sum over all processes."""

    def __init__(self, collector: Collector, siblings: Siblings | None = None) -> None:
        self._siblings = siblings
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)

    async def start(self) -> None:
        """Be there for the other processes."""
        if self._siblings is not None:
            await self._siblings.start(self.page)

    async def close(self) -> None:
        """Be there no more."""
        if self._siblings is not None:
            await self._siblings.close()

    def page(self) -> bytes:
        """All samples of this process, now, as text."""
        return generate_latest(self._registry)

    async def total(self) -> bytes:
        """All samples of all processes. Raises OSError or TimeoutError when one of them does not answer."""
        if self._siblings is None:
            return self.page()
        return added([self.page(), *await self._siblings.pages()])
