"""The door: who gets in, who waits, who is sent away, and that nobody's place is lost."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import Admission, Permit, Refusal
from gateway.limits import Limits
from schemas.openai.errors import ServingError
from tests.unit.gateway_fakes import turns


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[Alarm] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> "Alarm":
        """As an event loop's."""
        alarm = Alarm(self.now + delay, callback)
        self._timers.append(alarm)
        return alarm

    def advance(self, seconds: float) -> None:
        """Let time pass; what is due is called in its order."""
        self.now += seconds
        for alarm in sorted(self._timers, key=lambda alarm: alarm.at):
            if alarm.at <= self.now and alarm.callback is not None:
                callback, alarm.callback = alarm.callback, None
                callback()


class Alarm:
    """A call the clock will make."""

    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at = at
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """It will not."""
        self.callback = None


def door(clock: Clock | None = None, **limits: float) -> Admission:
    """A door for one at a time, with a waiting room for two, unless told otherwise."""
    sizes = {"max_in_flight": 1, "max_waiting": 2, "max_wait_seconds": 10.0} | limits
    return Admission(Limits(**sizes), clock.call_later if clock else None)  # type: ignore[arg-type]  # floats and ints mixed


async def entered(admission: Admission) -> Permit:
    """A permit that is inside."""
    permit = admission.permit()
    await permit.enter()
    return permit


async def test_a_place_is_given_back_with_the_permit() -> None:
    """Leaving a permit's context frees its place, whatever way it is left."""
    admission = door()

    async def break_inside() -> None:
        with admission.permit() as permit:
            await permit.enter()
            assert admission.in_flight == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await break_inside()

    assert admission.in_flight == 0


async def test_a_second_release_gives_nothing_back() -> None:
    """A place is given back once."""
    admission = door(max_in_flight=2)
    first, _second = await entered(admission), await entered(admission)

    first.release()
    first.release()

    assert admission.in_flight == 1


async def test_who_waits_is_let_in_in_order() -> None:
    """The longest waiting request is the next one."""
    admission = door()
    first = await entered(admission)
    order: list[int] = []

    async def wait(number: int) -> None:
        with admission.permit() as permit:
            await permit.enter()
            order.append(number)

    waiting = [asyncio.create_task(wait(number)) for number in range(2)]
    await turns()
    assert (admission.waiting, order) == (2, [])
    first.release()
    await asyncio.gather(*waiting)

    assert (order, admission.in_flight, admission.waiting) == ([0, 1], 0, 0)


async def test_newcomers_do_not_overtake() -> None:
    """Whoever comes while others wait waits behind them, even if a place is free at that moment."""
    admission = door()
    first = await entered(admission)
    waiting = asyncio.create_task(entered(admission))
    await turns()
    first.release()

    newcomer = asyncio.create_task(entered(admission))
    await turns()

    assert (waiting.done(), newcomer.done()) == (True, False)
    newcomer.cancel()
    await asyncio.gather(newcomer, return_exceptions=True)


async def test_a_full_waiting_room_refuses_at_once() -> None:
    """One more than the room holds is a 429 with Retry-After, and is counted."""
    admission = door(max_waiting=0)
    await entered(admission)

    with pytest.raises(ServingError) as refused:
        await entered(admission)

    assert (refused.value.status, refused.value.retry_after) == (429, 1.0)
    assert admission.refusals[Refusal.QUEUE_FULL] == 1


async def test_a_wait_ends_when_it_was_long_enough() -> None:
    """A request waits no longer than the limit, and leaves no trace."""
    clock = Clock()
    admission = door(clock)
    await entered(admission)
    waiting = asyncio.create_task(entered(admission))
    await turns()

    clock.advance(9.9)
    await turns()
    assert not waiting.done()
    clock.advance(0.2)

    with pytest.raises(ServingError, match="in time"):
        await waiting
    assert (admission.waiting, admission.refusals[Refusal.WAITED_TOO_LONG]) == (0, 1)


async def test_a_place_given_to_one_who_just_left_goes_to_the_next() -> None:
    """A waiter that is cancelled in the very turn it was let in passes the place on."""
    admission = door()
    first = await entered(admission)
    leaver, follower = asyncio.create_task(entered(admission)), asyncio.create_task(entered(admission))
    await turns()

    first.release()
    leaver.cancel()
    await asyncio.gather(leaver, return_exceptions=True)
    permit = await follower

    assert (leaver.cancelled(), admission.in_flight) == (True, 1)
    permit.release()
    assert admission.in_flight == 0


async def test_a_cancelled_waiter_leaves_the_room() -> None:
    """A place in the room is free again when its client is gone."""
    admission = door(max_waiting=1)
    await entered(admission)
    waiting = asyncio.create_task(entered(admission))
    await turns()

    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert admission.waiting == 0


def test_bytes_are_bounded_over_all_requests() -> None:
    """What does not fit is refused with a 503 and is not counted as held."""
    admission = door(max_bytes=100)
    first, second = admission.permit(), admission.permit()
    first.grow(60)

    with pytest.raises(ServingError) as refused:
        second.grow(41)
    second.release()

    assert (refused.value.status, admission.body_bytes) == (503, 60)
    first.release()
    assert admission.body_bytes == 0


@given(st.lists(st.tuples(st.sampled_from(["come", "leave", "finish", "late"]), st.integers(0, 7)), max_size=40))
def test_no_order_of_events_loses_a_place(events: list[tuple[str, int]]) -> None:
    """Whoever comes, leaves, finishes or waits too long in whatever order: in the end nothing is held."""

    async def play() -> tuple[int, int]:
        clock = Clock()
        admission = door(clock, max_in_flight=2)
        done = [asyncio.Event() for _ in range(8)]
        tasks: dict[int, asyncio.Task[None]] = {}

        async def request(number: int) -> None:
            with admission.permit() as permit:
                await permit.enter()
                await done[number].wait()

        for event, number in events:
            if event == "come" and number not in tasks:
                tasks[number] = asyncio.create_task(request(number))
            elif event == "leave" and number in tasks:
                tasks[number].cancel()
            elif event == "finish":
                done[number].set()
            elif event == "late":
                clock.advance(6.0)
            await asyncio.sleep(0)
            assert admission.in_flight <= 2
        for event_ in done:
            event_.set()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        return admission.in_flight, admission.waiting

    assert asyncio.run(play()) == (0, 0)
