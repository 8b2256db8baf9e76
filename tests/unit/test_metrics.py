"""What the gateway counts, and that nothing a client sends makes new series."""

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from gateway.admission import Admission
from gateway.api.errors import headers_of
from gateway.breaker import Breaker
from gateway.limits import Limits
from gateway.log import AccessLine, AccessLog, configure
from gateway.member import LegName, Outcome, Role
from gateway.metrics import Histogram, Metrics
from gateway.scrape import GatewayCollector, Scrape
from schemas.openai.errors import HTTP_STATUS, ErrorKind, ServingError
from tests.unit.gateway_fakes import CHAT, DONE, EVENT, FakeStream, chat, rig


@dataclass
class CountingLink:
    """A link that reads typed events."""

    skipped_events: int = 3


@dataclass
class FleetMember:
    """A worker as the metrics see it."""

    index: int = 0
    role: str = Role.BOTH
    link: object = None
    up: bool = True
    breaker: Breaker = field(default_factory=lambda: Breaker(lambda: 0.0))
    active: int = 2
    legs: Counter[Any] = field(default_factory=lambda: Counter({(LegName.AGGREGATED, Outcome.SUCCESS): 5}))


def samples(page: bytes) -> dict[str, float]:
    """The samples of a page by their name and the values of their labels, those in the order of their names."""
    families = list(text_string_to_metric_families(page.decode()))
    return {
        sample.name.removeprefix("packrelay_gateway_")
        + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def page_of(*workers: FleetMember) -> bytes:
    """What is shown of these workers, after four further attempts and six that were refused."""
    return Scrape(GatewayCollector(Metrics(), Admission(Limits()), lambda: workers, lambda: 4, lambda: 6)).page()


async def scraped(gateway: Any) -> dict[str, float]:
    """The samples a scrape gets."""
    return samples((await gateway.client.get("/metrics")).body)


def test_a_histogram_counts_up_to_and_including_its_bounds() -> None:
    """A value lies in the first bucket whose bound is not below it; several are counted at once."""
    histogram = Histogram((1.0, 2.0))

    histogram.observe(1.0)
    histogram.observe_each(4.5, times=3)
    histogram.observe(9.0)

    assert (histogram.counts, histogram.total) == ([1, 3, 1], 14.5)


async def test_requests_are_counted_by_how_they_ended() -> None:
    """Endpoint, status class and outcome are the labels."""
    gateway = rig()
    await gateway.client.post(CHAT, chat())
    await gateway.client.post(CHAT, chat(model="nope"))
    gateway.backend.reply = ServingError(ErrorKind.BAD_WORKER, "Lost.")
    await gateway.client.post(CHAT, chat())

    found = await scraped(gateway)

    assert found["requests_total chat completed 2xx"] == 1
    assert found["requests_total chat rejected 4xx"] == 1
    assert found["requests_total chat failed 5xx"] == 1


async def test_a_stream_is_timed_by_its_events() -> None:
    """The first event is the time to first token; every event after it is a gap, also when several came at once."""
    gateway = rig(FakeStream(EVENT, EVENT + EVENT, DONE))
    await gateway.client.post(CHAT, chat(stream=True))

    found = await scraped(gateway)

    assert found["time_to_first_token_seconds_count"] == 1
    assert found["inter_token_seconds_count"] == 3
    assert found["request_seconds_count"] == 1


async def test_clients_cannot_make_series() -> None:
    """Random models, paths, methods and fields leave the number of series as it is."""
    gateway = rig()

    async def throw(number: int) -> None:
        await gateway.client.post(CHAT, chat(model=f"m{number}", **{f"f{number}": 1}))
        await gateway.client.get(f"/p{number}")
        await gateway.client.get(f"/v1/models/m{number}")
        await gateway.client.ask(f"M{number}", CHAT)

    await throw(0)
    await scraped(gateway)
    before = len(await scraped(gateway))
    for number in range(1, 50):
        await throw(number)

    assert len(await scraped(gateway)) == before


def test_workers_and_their_legs_are_shown() -> None:
    """Every worker of the fleet is there by its place, with its legs by outcome."""
    found = samples(page_of(FleetMember()))

    assert found["worker_up both 0"] == 1
    assert found["worker_legs_in_flight both 0"] == 2
    assert found["worker_legs_total aggregated success 0"] == 5


def test_an_open_breaker_is_shown() -> None:
    """A worker that failed so often that it gets no more work is told from one that does."""
    failing = FleetMember(1)
    for _ in range(3):
        failing.breaker.failure()

    found = samples(page_of(FleetMember(0), failing))

    assert (found["worker_breaker_open both 0"], found["worker_breaker_open both 1"]) == (0, 1)


def test_attempts_are_shown_made_and_refused() -> None:
    """How often a request was tried again, and how often the fleet's budget did not allow it."""
    found = samples(page_of())

    assert (found["retries_total"], found["retries_refused_total"]) == (4, 6)


def test_skipped_events_are_shown_where_events_are_read() -> None:
    """A worker behind a channel has a count of what it said in words of a later release; one over HTTP has none."""
    found = samples(page_of(FleetMember(0, link=CountingLink()), FleetMember(1, link=object())))

    assert found["skipped_events_total both 0"] == 3
    assert "skipped_events_total both 1" not in found


async def test_refusals_and_states_are_shown() -> None:
    """Why requests were not let in, and what is held now."""
    gateway = rig(max_in_flight_bytes=10)
    await gateway.client.post(CHAT, chat())

    found = await scraped(gateway)

    assert found["refusals_total body_bytes"] == 1
    assert found["requests_total chat refused 5xx"] == 1
    assert (found["in_flight"], found["waiting"], found["body_bytes"]) == (0, 0, 0)


def test_a_log_line_holds_nothing_unescaped(capsys: pytest.CaptureFixture[str]) -> None:
    """Line breaks, control characters and other alphabets in a value stay inside one line of ASCII."""
    configure("info")
    structlog.get_logger().info("event", value="a\nb\x1b[31m\u2028\u009b")

    line = capsys.readouterr().err
    structlog.reset_defaults()

    assert line.isascii()
    assert (line.count("\n"), json.loads(line)["value"]) == (1, "a\nb\x1b[31m\u2028\u009b")


async def test_an_access_line_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    """An access line has the keys of every other log line, and the request's facts."""
    line = AccessLine(
        timestamp=datetime(2026, 1, 1, microsecond=5, tzinfo=UTC),
        request_id="a" * 32,
        client_request_id=None,
        endpoint="chat",
        method="POST",
        path=CHAT,
        status=200,
        outcome="completed",
        stream=False,
        seconds=0.25,
        first_byte=None,
    )

    log = AccessLog()
    log.add(line)
    log.flush()

    written = capsys.readouterr().err
    assert (written.count("\n"), json.loads(written)["event"], json.loads(written)["seconds"]) == (1, "request", 0.25)


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_every_kind_of_failure_has_headers(kind: ErrorKind) -> None:
    """Each kind has a JSON response; what clients must not repeat says so."""
    headers = dict(headers_of(ServingError(kind, "Sentence.", retry_after=0.2)))

    assert headers[b"content-type"] == b"application/json"
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"1", b"200")
    assert (b"x-should-retry" in headers) is (HTTP_STATUS[kind] in {500, 501, 504})
