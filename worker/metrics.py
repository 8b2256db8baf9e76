"""What a worker counts. Counting is adding to plain integers; they become Prometheus samples only when somebody asks.

Label values come from closed sets, so the number of series does not depend on what clients send.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counters:
    """Everything counted since the start.

    `requests` by (endpoint, outcome): endpoint chat or completions, outcome ok, disconnected or an error kind. `handoff_errors` by
    the reasons of `worker.handoff.Reason`.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.handoff_errors: Counter[str] = Counter()
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.decode_failures = 0
        self.aborts = 0
        self.handoffs_sent = 0
        self.handoffs_received = 0


class WorkerCollector(Collector):
    """Reads the counters, and asks for what is a state and not a count: requests in flight, prefill states kept and their bytes."""

    def __init__(self, counters: Counters, in_flight: Callable[[], int], kept: Callable[[], tuple[int, int]]) -> None:
        self._counters = counters
        self._in_flight = in_flight
        self._kept = kept

    def collect(self) -> Iterable[Metric]:
        """All samples, now."""
        yield self._requests()
        yield self._errors()
        for name, help_, value in self._totals():
            yield CounterMetricFamily(f"packrelay_worker_{name}", help_, value=value)
        states, size = self._kept()
        yield GaugeMetricFamily("packrelay_worker_in_flight", "Requests being served.", value=self._in_flight())
        yield GaugeMetricFamily("packrelay_worker_states", "Prefill states kept for other workers.", value=states)
        yield GaugeMetricFamily("packrelay_worker_state_bytes", "Bytes of the prefill states kept.", value=size)

    def _requests(self) -> Metric:
        family = CounterMetricFamily(
            "packrelay_worker_requests", "Requests ended, by outcome.", labels=["endpoint", "outcome"]
        )
        for labels, count in self._counters.requests.items():
            family.add_metric(labels, count)
        return family

    def _errors(self) -> Metric:
        family = CounterMetricFamily("packrelay_worker_handoff_errors", "Hand-offs that failed.", labels=["reason"])
        for reason, count in self._counters.handoff_errors.items():
            family.add_metric([reason], count)
        return family

    def _totals(self) -> Iterable[tuple[str, str, int]]:
        counters = self._counters
        yield "prompt_tokens", "Tokens of prompts read here.", counters.prompt_tokens
        yield "cached_tokens", "Prompt tokens found in the KV cache.", counters.cached_tokens
        yield "completion_tokens", "Tokens generated here.", counters.completion_tokens
        yield "decode_failures", "Request bodies that were malformed.", counters.decode_failures
        yield "aborts", "Requests ended by an abort.", counters.aborts
        yield "handoffs_sent", "Prefill states given to another worker.", counters.handoffs_sent
        yield "handoffs_received", "Prefill states fetched from another worker.", counters.handoffs_received


def exposition(collector: Collector) -> bytes:
    """The samples in Prometheus' text format (`CONTENT_TYPE`)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
