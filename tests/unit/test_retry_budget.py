"""How many further attempts all requests may make together."""

import pytest

from gateway.links.base import Reply
from gateway.retry_budget import LARGEST_SAVING, RetryBudget
from schemas.openai.errors import ServingError
from tests.unit.fake_link import always, fleet, worker
from tests.unit.test_orchestrator import call, serving


class Clock:
    """Stands still until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def drained(budget: RetryBudget) -> int:
    """How many attempts can be taken until the budget says no."""
    count = 0
    while budget.take():
        count += 1
    return count


def test_a_fraction_of_the_requests_may_be_tried_again() -> None:
    """When what was saved is used up, a hundred requests pay for twenty attempts, at most ten of them at once."""
    budget = RetryBudget(0.25, Clock())
    assert drained(budget) == LARGEST_SAVING

    made = 0
    for _ in range(100):
        budget.request_came()
        made += drained(budget)

    assert made == 25
    assert budget.refused == 1 + 100


def test_time_pays_for_a_few() -> None:
    """A gateway that is asked once an hour may still try again."""
    clock = Clock()
    budget = RetryBudget(0.0, clock)
    drained(budget)
    clock.now = 3.0

    assert drained(budget) == 3


def test_no_more_is_saved_than_the_most() -> None:
    """A quiet day is not paid for with a storm."""
    clock = Clock()
    budget = RetryBudget(0.2, clock)
    clock.now = 86400.0

    assert drained(budget) == LARGEST_SAVING


@pytest.mark.parametrize("status", [500, 503])
async def test_workers_that_always_fail_are_not_buried_in_attempts(status: int) -> None:
    """Two hundred requests, each with a retry of its own, make little more than the fraction the fleet may retry."""
    workers, links = zip(*(worker(always(Reply(status, {}, b"{}")), index=at) for at in range(2)), strict=True)
    gateway = serving(fleet(*workers), retries=3, retry_fraction=0.1)

    for _ in range(200):
        with pytest.raises(ServingError):
            await gateway.answer(call())

    attempts = sum(len(link.asked) for link in links)
    assert 200 < attempts <= 200 + LARGEST_SAVING + 0.1 * 200
    assert gateway.retries == attempts - 200


async def test_a_worker_that_shuts_down_counts_as_down_until_it_is_checked() -> None:
    """It said so itself; what is started in its place owes no pause."""
    leaving, _ = worker(always(Reply(503, {"retry-after": "1"}, b'{"error":{"code":"shutting_down"}}')))
    gateway = serving(fleet(leaving))

    with pytest.raises(ServingError):
        await gateway.answer(call())

    assert (leaving.up, leaving.resting) == (False, 0.0)


async def test_a_worker_that_says_when_to_come_back_is_left_alone() -> None:
    """The second request does not reach it; the client is told the same."""
    busy, link = worker(always(Reply(503, {"retry-after": "5"}, b"{}")), clock=lambda: 0.0)
    gateway = serving(fleet(busy))

    for _ in range(2):
        with pytest.raises(ServingError) as refused:
            await gateway.answer(call())
        assert (refused.value.status, refused.value.retry_after) == (503, 5.0)

    assert len(link.asked) == 1
