"""Who can take a request."""

import asyncio

import pytest
from structlog.testing import capture_logs

from gateway.fleet import Fleet, Pair
from gateway.links.base import ConnectFailed, Deadlines, Reply
from gateway.member import LegName, Outcome, Role
from gateway.probing import Probing
from schemas.codec import encode_json
from schemas.dialect import PACKRELAY, STOCK, STOCK_2026_06, STOCK_2026_07, Dialect
from schemas.openai.models import Model, ModelList
from schemas.server_info import PackrelayInfo, ServerInfo
from tests.unit.fake_link import FakeLink, fleet, never, worker


def test_pair_is_of_one_engine_kind() -> None:
    """A state one engine wrote is never given to another."""
    context, _ = worker(role=Role.CONTEXT, index=0, engine="a")
    other, _ = worker(role=Role.GENERATION, index=1, engine="b")
    same, _ = worker(role=Role.GENERATION, index=2, engine="a")

    pair = fleet(context, other, same).pair("m")

    assert pair is not None
    assert pair.generation is same


def test_pair_is_both_or_none() -> None:
    """A context worker whose only partner speaks another engine gets no work."""
    context, _ = worker(role=Role.CONTEXT, index=0, engine="a")
    other, _ = worker(role=Role.GENERATION, index=1, engine="b")

    assert fleet(context, other).pair("m") is None


def test_pair_is_of_one_model() -> None:
    """Workers of another model are no partners."""
    context, _ = worker(role=Role.CONTEXT, index=0)
    other, _ = worker(role=Role.GENERATION, index=1, model="other")

    assert fleet(context, other).pair("m") is None


def test_failed_worker_is_avoided_while_there_is_another() -> None:
    """A retry goes elsewhere, and to the same worker only when it is the only one."""
    first, _ = worker(index=0)
    second, _ = worker(index=1)
    known = fleet(first, second)

    assert known.aggregated("m", [first]) is second
    assert fleet(first).aggregated("m", [first]) is first


def test_worker_with_an_open_breaker_is_not_chosen() -> None:
    """Three failed legs in a row send its share to the others."""
    bad, _ = worker(index=0, clock=lambda: 0.0)
    good, _ = worker(index=1)
    known = fleet(bad, good)
    for _ in range(3):
        bad.begin()
        bad.end(LegName.AGGREGATED, Outcome.FAILURE)

    assert {known.aggregated("m") for _ in range(4)} == {good}


def test_worker_that_said_when_to_come_back_is_not_asked_before() -> None:
    """Nobody asks it earlier, not even when there is no other; the client hears how long. It counts as able to serve."""
    now = [0.0]
    busy, _ = worker(clock=lambda: now[0])
    known = fleet(busy)
    busy.ask_not_before(7.0)

    assert known.aggregated("m") is None
    assert known.nobody("m").retry_after == 7.0
    assert known.can_serve()
    now[0] = 7.0
    assert known.aggregated("m") is busy


def test_restarted_worker_owes_no_pause() -> None:
    """What the process before it said about coming back does not hold for the new one."""
    busy, _ = worker(clock=lambda: 0.0)
    busy.ask_not_before(60.0)
    busy.ask_again()

    assert fleet(busy).aggregated("m") is busy


def test_client_mistakes_do_not_open_a_breaker() -> None:
    """Twenty refused requests leave a worker as trusted as before."""
    known, _ = worker()
    for _ in range(20):
        known.begin()
        known.end(LegName.AGGREGATED, Outcome.NEUTRAL)

    assert known.usable()


def test_down_workers_are_asked_when_there_is_nobody_else() -> None:
    """A worker that came back is found by the next request, not only by the next check."""
    only, _ = worker()
    only.up = False

    assert fleet(only).aggregated("m") is only


def test_fleet_cannot_serve_without_a_usable_pair() -> None:
    """Readiness needs both legs."""
    context, _ = worker(role=Role.CONTEXT, index=0)
    generation, _ = worker(role=Role.GENERATION, index=1)
    known = fleet(context, generation)
    ready = known.can_serve()
    generation.up = False

    assert ready
    assert not known.can_serve()


def test_no_prefill_is_begun_for_a_generation_worker_that_is_down() -> None:
    """A worker alone may be asked although it is down, which costs little; a prefill that nobody can go on from may not."""
    context, _ = worker(role=Role.CONTEXT, index=0)
    generation, _ = worker(role=Role.GENERATION, index=1)
    both, _ = worker(role=Role.BOTH, index=2)
    known = fleet(context, generation, both)
    generation.up = both.up = False

    assert known.pair("m") is None
    assert known.aggregated("m") is both
    assert known.nobody("m").status == 503


def test_the_only_generation_worker_is_asked_while_its_breaker_is_open() -> None:
    """Its health checks pass, and there is nobody else."""
    context, _ = worker(role=Role.CONTEXT, index=0)
    generation, _ = worker(role=Role.GENERATION, index=1)
    for _ in range(3):
        generation.begin()
        generation.end(LegName.GENERATION, Outcome.FAILURE)

    assert not generation.usable()
    assert fleet(context, generation).pair("m") == Pair(context, generation)


def test_models_are_the_union_of_the_workers() -> None:
    """Each model is listed once."""
    first, _ = worker(index=0, model="a")
    second, _ = worker(index=1, model="b")
    third, _ = worker(index=2, model="a")

    assert [model.id for model in fleet(first, second, third).models()] == ["a", "b"]


def side(**replies: Reply) -> FakeLink:
    """A link whose side paths answer as given: `health`, `models`, `info`."""
    _, link = worker()
    paths = {"/health": "health", "/v1/models": "models", "/server_info": "info", "/version": "version"}
    link.side_reply = lambda path: replies.get(paths[path], Reply(404, {}, b""))
    return link


async def checked(link: FakeLink, dialect: Dialect | None = None) -> Fleet:
    """A fleet of one worker behind this link, after its first check."""
    made, _ = worker()
    made.link, made.up, made.models = link, False, []
    known = Fleet([made], {}, Probing(), dialect=dialect)
    await known.start()
    await known.close()
    return known


async def test_worker_that_identifies_itself_speaks_our_dialect() -> None:
    """The engine and the deferred form are read from `/server_info`."""
    ours = PackrelayInfo(frames=1, deferred=True, grpc_port=None, model="m", engine="scripted", version="0")
    known = await checked(
        side(
            health=Reply(200, {}, b""),
            models=Reply(200, {}, encode_json(ModelList(data=[Model(id="m")]))),
            info=Reply(200, {}, encode_json(ServerInfo(packrelay=ours))),
        )
    )

    assert known.workers[0].dialect == PACKRELAY
    assert known.workers[0].engine == "scripted"


async def test_worker_without_server_info_is_stock() -> None:
    """Any server with `/health` and `/v1/models` can be a worker."""
    known = await checked(
        side(health=Reply(200, {}, b""), models=Reply(200, {}, encode_json(ModelList(data=[Model(id="m")]))))
    )

    assert known.workers[0].up
    assert known.workers[0].dialect is STOCK


async def test_worker_with_nonsense_models_is_not_up() -> None:
    """A server that answers something else is not sent any work."""
    known = await checked(side(health=Reply(200, {}, b""), models=Reply(200, {}, b"<html>")))

    assert not known.workers[0].up


async def test_worker_that_cannot_be_reached_is_not_up() -> None:
    """The check fails, the fleet starts all the same."""
    link = side()

    def refuse(_path: str) -> Reply:
        raise ConnectFailed("refused")

    link.side_reply = refuse
    known = await checked(link)

    assert not known.can_serve()


class CheckedLink(FakeLink):
    """A link whose health checks are counted; while `silent` they are not answered."""

    def __init__(self) -> None:
        super().__init__(never)
        self.checks: asyncio.Queue[None] = asyncio.Queue()
        self.silent = False
        self.under_way = 0
        self.most_under_way = 0

    async def get(self, path: str, deadlines: Deadlines) -> Reply:
        self.checks.put_nowait(None)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.silent:
                await asyncio.Event().wait()
            return Reply(503, {}, b"")
        finally:
            self.under_way -= 1


async def test_worker_that_was_never_up_is_told_once() -> None:
    """A wrong address would else be a gateway that is never ready, and does not say why."""
    nobody, _ = worker()
    nobody.up = False
    nobody.link = link = CheckedLink()
    known = Fleet([nobody], {}, Probing(interval=0.0))

    with capture_logs() as lines:
        await known.start()
        async with asyncio.timeout(10):
            for _ in range(5):
                await link.checks.get()
        await known.close()

    assert [(line["event"], line["url"], line["reason"]) for line in lines if line["log_level"] == "warning"] == [
        ("worker.down", "http://fake", "Its health check was answered 503.")
    ]


async def test_silent_worker_delays_no_other_check_than_its_own() -> None:
    """While one worker does not answer, the other is checked again and again, and the silent one is not asked twice at a time."""
    silent, _ = worker(index=0)
    other, _ = worker(index=1)
    silent.link, other.link = (silent_link, other_link) = CheckedLink(), CheckedLink()
    known = Fleet([silent, other], {}, Probing(interval=0.0))
    await known.start()
    silent_link.silent = True

    async with asyncio.timeout(10):
        while silent_link.under_way == 0:
            await other_link.checks.get()
        for _ in range(20):
            await other_link.checks.get()
    await known.close()

    assert silent_link.most_under_way == 1
    assert silent_link.under_way == 0


@pytest.mark.parametrize(
    ("version", "dialect"),
    [
        ('{"version": "1.3.0"}', STOCK),
        ('{"version": "1.3.0rc25"}', STOCK),
        ('{"version": "1.3.0rc24"}', STOCK_2026_07),
        ('{"version": "1.3.0rc15.post1"}', STOCK_2026_06),
        ('{"version": "main"}', STOCK),
    ],
)
async def test_stock_worker_speaks_the_dialect_of_its_version(version: str, dialect: Dialect) -> None:
    """The version at `/version` decides; one that cannot be read is the newest."""
    known = await checked(stock_side(version))

    assert known.workers[0].dialect is dialect


async def test_dialect_of_stock_workers_can_be_said() -> None:
    """The operator's word counts more than the version."""
    known = await checked(stock_side('{"version": "1.3.0"}'), STOCK_2026_07)

    assert known.workers[0].dialect is STOCK_2026_07


def stock_side(version: str) -> FakeLink:
    """A link to a healthy stock worker that says this version."""
    return side(
        health=Reply(200, {}, b""),
        models=Reply(200, {}, encode_json(ModelList(data=[Model(id="m")]))),
        version=Reply(200, {}, version.encode()),
    )


# --- coming and going ---


async def test_added_worker_gets_work_once_it_is_prepared() -> None:
    """Its first check is made at once; before that nobody is sent to it."""
    known = fleet()
    made, _ = worker()
    made.link, made.up, made.models = stock_side('{"version": "1.3.0"}'), False, []
    check = known.add(made)
    early = known.aggregated("m")
    await check
    await known.close()

    assert early is None
    assert known.aggregated("m") is made


async def test_removed_worker_gets_no_more_work_and_finishes_its_own() -> None:
    """Its link stays open for the legs in flight, and closes with the last of them."""
    made, link = worker()
    known = fleet(made)
    made.begin()
    known.remove(made)
    known.remove(made)
    await asyncio.sleep(0)
    open_meanwhile = not link.closed
    made.end(LegName.AGGREGATED, Outcome.SUCCESS)
    (leaving,) = known._leaving
    await leaving

    assert (open_meanwhile, link.closed) == (True, True)
    assert known.aggregated("m") is None


async def test_closing_ends_the_links_of_those_that_are_leaving_too() -> None:
    """A leg that hangs keeps no link open at the end."""
    made, link = worker()
    known = fleet(made)
    made.begin()
    known.remove(made)
    await known.close()

    assert link.closed


def test_free_index_is_the_lowest_there_is() -> None:
    """Workers that come and go do not make ever more series of metrics."""
    first, _ = worker(index=0)
    third, _ = worker(index=2)

    assert fleet(first, third).free_index() == 1


def test_incomplete_fleet_serves_nobody() -> None:
    """Below the minimum the fleet is not ready, and says that workers are missing."""
    context, _ = worker(role=Role.CONTEXT, index=0)
    generation, _ = worker(role=Role.GENERATION, index=1)
    known = fleet(context, generation)
    ready = known.can_serve()
    known.minimum = {Role.GENERATION: 2}

    assert ready
    assert not known.can_serve()
    assert known.nobody("m").status == 503
