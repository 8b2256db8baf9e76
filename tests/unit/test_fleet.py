"""Who can take a request."""

from gateway.fleet import Fleet
from gateway.links.base import ConnectFailed, Reply
from gateway.member import LegName, Outcome, Role
from schemas.codec import encode_json
from schemas.dialect import PACKRELAY, STOCK
from schemas.openai.models import Model, ModelList
from schemas.server_info import PackrelayInfo, ServerInfo
from tests.unit.fake_link import FakeLink, fleet, worker


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


def test_models_are_the_union_of_the_workers() -> None:
    """Each model is listed once."""
    first, _ = worker(index=0, model="a")
    second, _ = worker(index=1, model="b")
    third, _ = worker(index=2, model="a")

    assert [model.id for model in fleet(first, second, third).models()] == ["a", "b"]


def side(**replies: Reply) -> FakeLink:
    """A link whose side paths answer as given: `health`, `models`, `info`."""
    _, link = worker()
    paths = {"/health": "health", "/v1/models": "models", "/server_info": "info"}
    link.side_reply = lambda path: replies.get(paths[path], Reply(404, {}, b""))
    return link


async def checked(link: FakeLink) -> Fleet:
    """A fleet of one worker behind this link, after its first check."""
    made, _ = worker()
    made.link, made.up, made.models = link, False, []
    known = fleet(made)
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
