"""The benchmarks' own arithmetic, and that their load generator knows a wrong answer when it gets one."""

import json

import pytest
from msgspec import structs

from benchmarks.bodies import Alphabet, agentic, small
from benchmarks.load.exchange import Exchange, Outcome, dechunked
from benchmarks.load.figures import Gaps, Percentiles, percentile, percentiles, spread
from benchmarks.load.plan import Measured
from benchmarks.question import added, below, per_request, ratio

NONE = Percentiles(0, 0.0, 0.0, 0.0)
MEASURED = Measured(
    requests=1000,
    failures=0,
    seconds=2.0,
    cpu=0.1,
    events=0,
    resident=0,
    latency=NONE,
    first=NONE,
    gap=NONE,
    delay=NONE,
    probe=NONE,
)
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def costing(*microseconds: float) -> list[Measured]:
    """One round for each cost per request."""
    return [structs.replace(MEASURED, cpu=cost * MEASURED.requests / 1e6) for cost in microseconds]


def test_a_percentile_is_a_value_that_was_measured() -> None:
    """The nearest rank: of a hundred values the 99th is the 99th."""
    values = [float(number) for number in range(1, 101)]

    assert [percentile(values, percent) for percent in (50, 99, 99.9)] == [50.0, 99.0, 100.0]


def test_percentiles_of_nothing_are_zero() -> None:
    """No time, no percentile, and no failure either."""
    assert percentiles([]) == NONE


def test_events_that_came_together_share_their_time() -> None:
    """Three events after 30 ms count as three gaps of 10 ms."""
    gaps = Gaps()
    gaps.arrived(0.03, 3)

    assert list(gaps.values) == [0.01] * 3


def test_cost_is_per_request_and_share_is_per_second() -> None:
    """A tenth of a second for a thousand requests in two seconds: 100 us each, a twentieth of a core."""
    assert MEASURED.per_request == pytest.approx(100.0)
    assert MEASURED.share == 0.05


def test_a_ratio_compares_medians() -> None:
    """One slow round of three changes nothing."""
    verdict = ratio("ours", "floor", 0.5)({"ours": costing(40, 45, 400), "floor": costing(100, 100, 100)})

    assert verdict.value == pytest.approx(0.45)
    assert verdict.met


def test_an_unstable_floor_is_reported_and_not_used() -> None:
    """A floor whose rounds differ by more than 1.3 judges nobody."""
    verdict = ratio("ours", "floor", 0.5)({"ours": costing(40), "floor": costing(100, 140, 100)})

    assert (verdict.met, spread([100, 140])) == (None, 1.4)
    assert "unstable" in verdict.note


@pytest.mark.parametrize("label", ["ours", "theirs"])
def test_nothing_is_met_where_requests_failed(label: str) -> None:
    """What failed quickly would look cheap."""
    results = {"ours": costing(10), "theirs": costing(100)}
    results[label] = [structs.replace(results[label][0], failures=1)]

    assert ratio("ours", "theirs", 0.5)(results).met is None
    assert added("ours", "theirs", 0.5, per_request, "said")(results).met is None


@pytest.mark.parametrize(("cost", "met"), [(50, True), (51, False)])
def test_a_figure_is_held_against_a_limit_of_its_own(cost: float, met: bool) -> None:
    """With nothing beside it."""
    verdict = below("ours", 50.0, per_request, "50 us")({"ours": costing(cost)})

    assert verdict.value == pytest.approx(cost)
    assert verdict.met is met
    assert below("ours", 50.0, per_request, "50 us")({}).met is None


def test_a_missing_floor_is_no_success() -> None:
    """Where the other server was not measured, nothing is said to be met."""
    verdict = added("ours", "floor", 1.0, per_request, "at most 1 over it")({"ours": costing(40)})

    assert (verdict.met, verdict.note) == (None, "no floor")


@pytest.mark.parametrize("size", [1_000, 100_000, 1_000_000])
@pytest.mark.parametrize("alphabet", ["ascii", "mixed"])
def test_bodies_are_json_of_about_their_size(size: int, alphabet: Alphabet) -> None:
    """A body is a chat of the size it was asked for, within a turn, and ASCII only if that was asked for."""
    body = agentic(size, alphabet)

    assert size <= len(body) < size + 4_000
    assert json.loads(body)["messages"][0]["role"] == "system"
    assert body.isascii() is (alphabet == "ascii")


def test_bodies_are_the_same_every_time() -> None:
    """What is measured tomorrow is what was measured today."""
    first = agentic(5_000)
    agentic.cache_clear()

    assert agentic(5_000) == first
    assert json.loads(small(stream=True))["stream"] is True


def test_chunks_come_apart_where_they_were_cut() -> None:
    """An event that was cut by the framing is whole again without it."""
    assert dechunked(b"3\r\ndat\r\n7;x=1\r\na: {}\n\n\r\n0\r\n\r\n") == b"data: {}\n\n"


@pytest.mark.parametrize(
    ("pieces", "ok"),
    [
        ([HEAD, b"a\r\ndata: {}\n\n\r\n", DONE], True),
        ([HEAD[:20], HEAD[20:] + b"3\r\ndat\r\n7\r\na: {}\n\n\r\n", DONE], True),
        ([HEAD, DONE], False),
        ([HEAD.replace(b"200 OK", b"502 No"), b"a\r\ndata: {}\n\n\r\n", DONE], False),
    ],
    ids=["whole", "in pieces", "an event is missing", "an error"],
)
def test_a_stream_is_right_with_all_its_events_and_its_terminal(pieces: list[bytes], ok: bool) -> None:
    """A stream of one event is checked when it ends, however it arrived."""
    outcomes: list[Outcome] = []
    exchange = Exchange(lambda _, outcome: outcomes.append(outcome))
    exchange.send(b"", events=1)
    for piece in pieces:
        exchange.data_received(piece)

    assert [outcome.ok for outcome in outcomes] == [ok]


@pytest.mark.parametrize("body", [DONE, b"a\r\ndata: {}\n\n\r\n" + DONE])
def test_a_stream_of_any_number_of_events_must_have_its_terminal(body: bytes) -> None:
    """Nothing else is asked of it, and nothing less."""
    outcomes: list[Outcome] = []
    for end in (body, b"0\r\n\r\n"):
        exchange = Exchange(lambda _, outcome: outcomes.append(outcome))
        exchange.send(b"", events=-1)
        exchange.data_received(HEAD + end)

    assert [outcome.ok for outcome in outcomes] == [True, False]


def test_a_lost_connection_is_a_failed_request() -> None:
    """A server that goes away before the end of its answer has not answered."""
    outcomes: list[Outcome] = []
    exchange = Exchange(lambda _, outcome: outcomes.append(outcome))
    exchange.send(b"")
    exchange.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345")
    exchange.connection_lost(None)

    assert [outcome.ok for outcome in outcomes] == [False]
