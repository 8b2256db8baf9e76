"""Policies, breakers and ids: small parts with one promise each."""

from msgspec import Struct

from gateway.breaker import Breaker, BreakerState
from gateway.ids import DisaggregatedIds
from gateway.routing import POLICIES
from gateway.routing.least_loaded import LeastLoaded
from gateway.routing.round_robin import RoundRobin


class Candidate(Struct):
    """A worker as a policy sees it."""

    index: int
    active: int = 0


class Clock:
    """Time that moves when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_round_robin_takes_every_worker_in_turn() -> None:
    """Three workers get six requests evenly and in order."""
    policy, workers = RoundRobin(), [Candidate(index) for index in range(3)]

    assert [policy.choose(workers).index for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_round_robin_keeps_its_turn_when_a_worker_leaves() -> None:
    """The worker behind the missing one is next, not the first of the list."""
    policy, workers = RoundRobin(), [Candidate(index) for index in range(3)]
    policy.choose(workers)

    assert policy.choose([workers[0], workers[2]]).index == 2


def test_least_loaded_prefers_the_idle_worker() -> None:
    """The worker with the fewest requests in flight is chosen whatever its place."""
    assert LeastLoaded().choose([Candidate(0, 3), Candidate(1, 1), Candidate(2, 2)]).index == 1


def test_least_loaded_shares_equals_in_turn() -> None:
    """Equally loaded workers are not all behind the first."""
    policy, workers = LeastLoaded(), [Candidate(0), Candidate(1)]

    assert {policy.choose(workers).index for _ in range(2)} == {0, 1}


def test_every_policy_has_the_name_the_command_line_uses() -> None:
    """The table's names are fixed: other people's scripts use them."""
    assert set(POLICIES) == {"round_robin", "least_loaded"}


def test_breaker_opens_after_failures_in_a_row() -> None:
    """The third failure without a success between them stops the work."""
    breaker = Breaker(Clock(), threshold=3)
    for _ in range(3):
        assert breaker.admits()
        breaker.failure()

    assert not breaker.admits()


def test_breaker_forgets_failures_at_a_success() -> None:
    """Failures must follow each other to count."""
    breaker = Breaker(Clock(), threshold=2)
    breaker.failure()
    breaker.success()
    breaker.failure()

    assert breaker.state is BreakerState.CLOSED


def test_breaker_admits_one_trial_after_the_cooldown() -> None:
    """A second request waits for the outcome of the first."""
    clock = Clock()
    breaker = Breaker(clock, threshold=1, cooldown=5)
    breaker.failure()
    clock.now += 5
    breaker.begin()

    assert not breaker.admits()


def test_breaker_closes_when_the_trial_succeeds() -> None:
    """One good answer readmits the worker."""
    clock = Clock()
    breaker = Breaker(clock, threshold=1, cooldown=5)
    breaker.failure()
    clock.now += 5
    breaker.begin()
    breaker.success()

    assert breaker.state is BreakerState.CLOSED


def test_breaker_opens_again_when_the_trial_fails() -> None:
    """The cooldown starts anew."""
    clock = Clock()
    breaker = Breaker(clock, threshold=1, cooldown=5)
    breaker.failure()
    clock.now += 5
    breaker.begin()
    breaker.failure()

    assert breaker.state is BreakerState.OPEN


def test_breaker_takes_back_a_trial_without_an_outcome() -> None:
    """A client that goes away must not leave the worker shut out for ever."""
    clock = Clock()
    breaker = Breaker(clock, threshold=1, cooldown=5)
    breaker.failure()
    clock.now += 5
    breaker.begin()
    breaker.neutral()

    assert breaker.admits()


def test_ids_are_unique_and_in_the_documented_range() -> None:
    """More ids than one millisecond's counter holds are all different, at least 2^40 and of 63 bits."""
    ids = DisaggregatedIds(node=255, process=63, clock=Clock())
    made = [ids.next() for _ in range(5000)]

    assert len(set(made)) == 5000
    assert all(1 << 40 <= each < (1 << 63) - 1 for each in made)


def test_ids_of_two_nodes_differ() -> None:
    """Two gateways that count alike do not collide."""
    clock = Clock()

    assert DisaggregatedIds(node=1, clock=clock).next() != DisaggregatedIds(node=2, clock=clock).next()


def test_gateways_without_a_node_draw_one() -> None:
    """Two that were started alike, in containers of one machine for instance, do not count alike."""
    clock = Clock()

    assert len({DisaggregatedIds(clock=clock).next() for _ in range(64)}) > 1
