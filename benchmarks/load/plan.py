"""What a load is, and what it measured: both cross between processes as JSON."""

from typing import Literal

from msgspec import Struct

from benchmarks.bodies import Alphabet
from benchmarks.load.figures import Percentiles


class Load(Struct, frozen=True, kw_only=True):
    """One load on one server. Times are in seconds.

    `closed`: `connections` clients, each sends as soon as it was answered. `open`: `rate` requests a second, whatever is answered;
    a request's time starts when it was due. `streams`: `connections` paced streams that last longer than the measurement.
    `size` 0 is the smallest chat. `events` is what a stream must have (0: the reply is whole; -1: any number). `probe` is a path
    that is asked for `probe_rate` times a second beside the load. `watch` is the process whose processor time is measured, with
    descendants.
    """

    port: int
    mode: Literal["closed", "open", "streams"] = "closed"
    connections: int = 16
    rate: float = 0.0
    size: int = 0
    alphabet: Alphabet = "mixed"
    events: int = 0
    warm: float = 0.5
    seconds: float = 2.0
    probe: str = ""
    probe_rate: float = 200.0
    watch: int = 0


class Measured(Struct, frozen=True, kw_only=True):
    """What was seen between the end of the warm-up and the end. `cpu` is in seconds, `events` counts those of streams.

    `latency` is of whole requests, `first` until the first byte of a body, `gap` per event after the first, `delay` from the
    worker's writing of an event to its arrival, `probe` of the probes. `share` is of one core.
    """

    requests: int
    failures: int
    seconds: float
    cpu: float
    events: int
    resident: int
    latency: Percentiles
    first: Percentiles
    gap: Percentiles
    delay: Percentiles
    probe: Percentiles

    @property
    def per_request(self) -> float:
        """Processor time per request, in microseconds."""
        return self.cpu / max(self.requests, 1) * 1e6

    @property
    def share(self) -> float:
        """Of one core."""
        return self.cpu / self.seconds
