"""The ways a request is served, over links that exist only here."""

import asyncio
import gc
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from gateway.call import Answer, Call
from gateway.fleet import Fleet
from gateway.links.base import ConnectFailed, Deadlines, LinkError, Reply, WorkerLost, WorkerSilent
from gateway.member import LegName, Outcome, Role, Worker
from gateway.orchestrator import Orchestrator
from gateway.serving import Serving
from schemas import disagg
from schemas.codec import read_chat_view, read_completion_view
from schemas.openai.errors import ErrorKind, ServingError
from tests.unit.fake_link import (
    Answering,
    FakeLink,
    FakeStream,
    always,
    fleet,
    in_turn,
    json_reply,
    msgpack_reply,
    never,
    soon,
    worker,
)

COMPLETION: dict[str, Any] = {"id": "c", "created": 1, "model": "m", "choices": [{"index": 0, "finish_reason": "stop"}]}
FIRST, LAST = b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n"


def context_body(finish_reason: str = "length", **params: Any) -> dict[str, Any]:
    """What a context worker answers."""
    made = {
        "request_type": "context_only",
        "first_gen_tokens": [5],
        "ctx_request_id": 2**62 + 3,
        "disagg_request_id": 2**62 + 3,
        "encoded_opaque_state": "AAEC",
        "ctx_info_endpoint": "http://context",
    } | params
    message = {"role": "assistant", "content": "all of it"}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "disaggregated_params": made}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    body = {"id": "chatcmpl-r", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    return body | {"prompt_token_ids": None, "prompt_token_ids_b64": "AQAAAA=="}


def call(stream: bool = False, deadline: float = 1e9, **fields: Any) -> Call:
    """A chat request."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **({"stream": True} if stream else {})}
    view, _ = read_chat_view(msgspec.json.encode(body | fields))
    return Call(operation="/v1/chat/completions", view=view, request_id="r", stream=stream, deadline=deadline)


def text_call(**fields: Any) -> Call:
    """A completions request."""
    view, _ = read_completion_view(msgspec.json.encode({"model": "m", "prompt": "hi"} | fields))
    return Call(operation="/v1/completions", view=view, request_id="r", stream=False, deadline=1e9)


def serving(known: Fleet, **settings: Any) -> Orchestrator:
    """An orchestrator on a clock that stands still."""
    return Orchestrator(known, Serving(**settings), clock=lambda: 0.0)


def two_legs(
    context: Answering, generation: Answering, *, stock: bool = False
) -> tuple[Fleet, FakeLink, FakeLink, list[Worker]]:
    """A context and a generation worker."""
    first, context_link = worker(context, role=Role.CONTEXT, index=0, stock=stock)
    second, generation_link = worker(generation, role=Role.GENERATION, index=1, stock=stock)
    return fleet(first, second), context_link, generation_link, [first, second]


async def drained(answer: Any) -> bytes:
    """All bytes of a stream."""
    parts = []
    while chunk := await answer.read():
        parts.append(chunk)
    return b"".join(parts)


async def test_aggregated_request_is_one_frame_to_one_worker() -> None:
    """The worker gets the client's request, and its reply is the client's answer byte for byte."""
    known, link = worker(always(json_reply(COMPLETION)))
    answer = await serving(fleet(known)).answer(call(temperature=0))

    assert isinstance(answer, Answer)
    assert answer.body == msgspec.json.encode(COMPLETION)
    assert link.asked[0].body["temperature"] == 0
    assert link.asked[0].headers["x-packrelay-request-id"] == "r"


async def test_context_leg_is_the_request_not_streamed() -> None:
    """Only the hand-off fields and the streaming change for the context worker."""
    known, context, _, _ = two_legs(always(msgpack_reply(context_body())), always(FakeStream(FIRST, LAST)))
    await serving(known).answer(call(stream=True, max_tokens=9))
    body = context.asked[0].body

    assert body["stream"] is False
    assert body["stream_options"] is None
    assert body["max_completion_tokens"] == 9
    assert body["disaggregated_params"]["request_type"] == "context_only"
    assert body["disaggregated_params"]["disagg_request_id"] >= 1 << 40


async def test_generation_leg_carries_what_the_context_leg_found() -> None:
    """Ids, opaque state, prompt ids and usage arrive exactly; streaming is the client's own wish again."""
    known, _, generation, _ = two_legs(always(msgpack_reply(context_body())), always(FakeStream(FIRST, LAST)))
    answer = await serving(known).answer(call(stream=True))
    body = generation.asked[0].body

    assert await drained(answer) == FIRST + LAST
    assert body["stream"] is True
    assert body["prompt_token_ids_b64"] == "AQAAAA=="
    assert body["disaggregated_params"]["request_type"] == "generation_only"
    assert body["disaggregated_params"]["ctx_request_id"] == 2**62 + 3
    assert body["disaggregated_params"]["ctx_usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("stock", [False, True])
async def test_generation_leg_may_be_without_history(stock: bool) -> None:
    """Told so, it gets the last message only, in the form its worker has; the context leg gets all of them."""
    messages = [{"role": "user", "content": text} for text in "abc"]
    known, context, generation, _ = two_legs(
        always(msgpack_reply(context_body())), always(json_reply(COMPLETION)), stock=stock
    )
    await serving(known, strip_message_history=True).answer(call(messages=messages))
    sent = [link.asked[0].body["messages"] for link in (context, generation)]

    assert [msgspec.json.decode(part) if isinstance(part, bytes) else part for part in sent] == [
        messages,
        messages[-1:],
    ]
    assert isinstance(sent[1], bytes) is not stock


async def test_ids_carry_the_node_and_the_process_they_were_made_in() -> None:
    """The node's number stands in bits 16 to 23, the process's in 10 to 15: no two processes mint the same."""
    known, context, _, _ = two_legs(always(msgpack_reply(context_body())), always(json_reply(COMPLETION)))
    await serving(known, node_id=17, process=3).answer(call())
    made = context.asked[0].body["disaggregated_params"]["disagg_request_id"]

    assert ((made - (1 << 40)) >> 16 & 0xFF, (made - (1 << 40)) >> 10 & 0x3F) == (17, 3)


async def test_completions_prompt_becomes_the_context_workers_ids() -> None:
    """The generation worker does not tokenise again."""
    reply = context_body() | {"prompt_token_ids": [1, 2], "prompt_token_ids_b64": None}
    known, _, generation, _ = two_legs(always(json_reply(reply)), always(json_reply(COMPLETION)))
    await serving(known).answer(text_call())

    assert generation.asked[0].body["prompt"] == [1, 2]


async def test_finished_context_leg_is_the_answer() -> None:
    """Nothing is sent to the generation worker, and the hand-off's fields are gone."""
    known, _, generation, _ = two_legs(always(msgpack_reply(context_body("stop"))), never)
    answer = await serving(known).answer(call())

    assert isinstance(answer, Answer)
    assert generation.asked == []
    assert b"disaggregated_params" not in answer.body
    assert b"all of it" in answer.body


async def test_finished_context_leg_is_delivered_as_a_stream() -> None:
    """A stream was asked for, a stream with the whole text is answered."""
    known, _, _, _ = two_legs(always(msgpack_reply(context_body("stop"))), never)
    data = await drained(await serving(known).answer(call(stream=True)))

    assert b"all of it" in data
    assert b'"finish_reason":"stop"' in data
    assert data.endswith(LAST)


@pytest.mark.parametrize("style", [disagg.CONTEXT_FIRST, disagg.GENERATION_FIRST])
async def test_finished_context_leg_that_is_no_answer_is_its_workers_fault(style: int) -> None:
    """Nothing can be made of it, so it is a failed leg as any other: tried again, and told to the client as a lost worker."""
    known, context, _, workers = two_legs(soon(msgpack_reply({"choices": [{"finish_reason": "stop"}]})), never)

    with pytest.raises(ServingError) as told:
        await serving(known, schedule_style=style, retry_fraction=1.0).answer(call(stream=True))

    assert (told.value.kind, told.value.code) == (ErrorKind.BAD_WORKER, "worker_lost")
    assert len(context.asked) == 2
    assert workers[0].legs[LegName.CONTEXT, Outcome.FAILURE] == 2


@pytest.mark.parametrize("state", [b"\x00", msgspec.msgpack.Ext(1, b"x"), 1.5, msgspec.Raw(b"\xa1\xff")])
async def test_handoff_that_cannot_be_signed_is_its_workers_fault(state: Any) -> None:
    """A state that is no text is none of ours."""
    body = context_body(encoded_opaque_state=state)
    known, _, generation, workers = two_legs(always(msgpack_reply(body)), always(json_reply(COMPLETION)))

    with pytest.raises(ServingError) as told:
        await serving(known, auth_key="k", retries=0).answer(call())

    assert told.value.code == "worker_lost"
    assert generation.asked == []
    assert workers[0].legs[LegName.CONTEXT, Outcome.FAILURE] == 1


async def test_handoff_is_signed_with_the_key() -> None:
    """The generation leg proves that the hand-off was not written by a client; the context leg carries no signature."""
    known, context, generation, _ = two_legs(always(msgpack_reply(context_body())), always(json_reply(COMPLETION)))
    await serving(known, auth_key="k").answer(call())

    assert generation.asked[0].headers["x-trtllm-disagg-auth"] == disagg.handoff_signature(
        "k", "http://context", "AAEC"
    )
    assert "x-trtllm-disagg-auth" not in context.asked[0].headers


@pytest.mark.parametrize(
    ("fields", "stock"),
    [({"n": 2}, False), ({"echo": True}, True), ({"prompt": ["a", "b"]}, False), ({"best_of": 2}, False)],
)
async def test_request_without_a_handoff_is_done_by_the_generation_worker(fields: dict[str, Any], stock: bool) -> None:
    """Several sequences are served whole, by one worker; so is an echoed prompt by stock workers."""
    known, context, generation, _ = two_legs(never, always(json_reply(COMPLETION)), stock=stock)
    await serving(known).answer(text_call(**fields))

    assert context.asked == []
    assert "disaggregated_params" not in generation.asked[0].body


async def test_short_prompt_skips_the_context_leg() -> None:
    """Conditional disaggregation: below the limit the generation worker prefills itself."""
    known, context, _, _ = two_legs(never, always(json_reply(COMPLETION)))
    await serving(known, max_local_prefill_length=1000).answer(call())

    assert context.asked == []


# --- failures before the first byte ---


@pytest.mark.parametrize("failure", [ConnectFailed("x"), WorkerLost("x"), json_reply({}, 500), json_reply({}, 503)])
async def test_failure_before_the_first_byte_is_retried_elsewhere(failure: Any) -> None:
    """Another worker answers, and the client notices nothing."""
    bad, _ = worker(always(failure), index=0)
    good, _ = worker(always(json_reply(COMPLETION)), index=1)

    assert isinstance(await serving(fleet(bad, good)).answer(call()), Answer)


async def test_stream_that_dies_before_its_first_event_is_retried() -> None:
    """Headers alone are not an answer."""
    bad, _ = worker(always(FakeStream(WorkerLost("x"))), index=0)
    good, _ = worker(always(FakeStream(FIRST, LAST)), index=1)

    assert await drained(await serving(fleet(bad, good)).answer(call(stream=True))) == FIRST + LAST


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_client_error_is_never_retried(status: int) -> None:
    """A 4xx is the client's, once."""
    only, link = worker(always(json_reply({"error": {"message": "no", "param": "x"}}, status)))
    with pytest.raises(ServingError) as caught:
        await serving(fleet(only), retries=5).answer(call())

    assert caught.value.param == "x"
    assert len(link.asked) == 1
    assert only.legs[LegName.AGGREGATED, Outcome.NEUTRAL] == 1


@pytest.mark.parametrize("status", [401, 403, 404, 302, 204])
async def test_what_speaks_of_the_deployment_is_not_the_clients(status: int) -> None:
    """The gateway checked key, route and model: a worker that objects to them is a 502, and another one is asked."""
    bad, link = worker(always(json_reply({"error": {"message": "bad key sk-1"}}, status)), index=0)
    good, _ = worker(always(json_reply(COMPLETION)), index=1)
    with pytest.raises(ServingError) as caught:
        await serving(fleet(bad), retries=0).answer(call())

    assert caught.value.status == 502
    assert "sk-1" not in caught.value.message
    assert isinstance(await serving(fleet(bad, good)).answer(call()), Answer)
    assert len(link.asked) >= 1


def left_for_a_collection() -> set[str]:
    """The types of what only the cyclic garbage collector would free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return {type(each).__name__ for each in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()


@pytest.mark.parametrize("style", [disagg.CONTEXT_FIRST, disagg.GENERATION_FIRST])
@pytest.mark.parametrize("status", [400, 429, 500])
@pytest.mark.parametrize("failing", ["context", "generation", "only"])
async def test_failed_request_leaves_its_body_to_nobody(failing: str, status: int, style: int) -> None:
    """A failure is not kept alive by itself: the view, and with it the client's body, is freed at once."""
    bad, good = always(json_reply({}, status)), always(msgpack_reply(context_body()))
    if failing == "only":
        owner = serving(fleet(worker(bad)[0]), retries=1)
    else:
        owner = serving(two_legs(*((bad, never) if failing == "context" else (good, bad)))[0], schedule_style=style)
    gc.collect()
    with suppress(ServingError):  # pytest.raises would keep it.
        await owner.answer(call())
    await owner.close()

    assert not left_for_a_collection() & {"ChatView", "Frames", "_Attempt", "Call"}


async def test_retries_end_with_the_budget() -> None:
    """A worker that always fails is asked once more than there are retries."""
    only, link = worker(always(json_reply({}, 500)))
    with pytest.raises(ServingError) as caught:
        await serving(fleet(only), retries=2).answer(call())

    assert caught.value.kind is ErrorKind.BAD_WORKER
    assert len(link.asked) == 3


async def test_back_pressure_passes_with_its_retry_after() -> None:
    """With nobody else to ask, the worker's own 429 and its wait reach the client at once."""
    only, link = worker(always(json_reply({}, 429, **{"retry-after": "7"})))
    with pytest.raises(ServingError) as caught:
        await serving(fleet(only), retries=3).answer(call())

    assert (caught.value.status, caught.value.retry_after) == (429, 7)
    assert len(link.asked) == 1
    assert only.usable()


async def test_silent_worker_is_a_504() -> None:
    """A deadline is told as what it is, and is not spent twice."""
    only, link = worker(always(WorkerSilent("x")))
    with pytest.raises(ServingError) as caught:
        await serving(fleet(only)).answer(call())

    assert caught.value.kind is ErrorKind.DEADLINE
    assert len(link.asked) == 1


async def test_retry_mints_a_new_disaggregated_id() -> None:
    """A state of the first attempt can never be taken for one of the second."""
    known, context, _, _ = two_legs(
        in_turn(WorkerLost("x"), msgpack_reply(context_body())), always(json_reply(COMPLETION))
    )
    await serving(known).answer(call())
    ids = [asked.body["disaggregated_params"]["disagg_request_id"] for asked in context.asked]

    assert len(set(ids)) == 2


async def test_lost_state_gets_one_fresh_attempt() -> None:
    """A failed hand-off runs both legs again."""
    lost = json_reply({"error": {"message": "gone", "type": "x", "code": "handoff_failed"}}, 503)
    known, context, generation, _ = two_legs(
        always(msgpack_reply(context_body())), in_turn(lost, json_reply(COMPLETION))
    )
    await serving(known).answer(call())

    assert len(context.asked) == len(generation.asked) == 2


async def test_failed_generation_releases_the_kept_state() -> None:
    """The context worker is told that nobody will come for it."""
    known, context, _, _ = two_legs(always(msgpack_reply(context_body())), always(json_reply({}, 500)))
    owner = serving(known, retries=0)
    with pytest.raises(ServingError):
        await owner.answer(call())
    await owner.close()

    assert [asked.body for asked in context.side_calls] == [{"request_id": "r"}]


@pytest.mark.parametrize(
    ("answer", "released"),
    [
        (WorkerSilent("x"), True),
        (WorkerLost("x"), True),
        (Reply(200, {"content-type": "application/json"}, b"{"), True),
        (ConnectFailed("x"), False),
        (json_reply({}, 500), False),
        (json_reply({}, 503), False),
    ],
    ids=["late", "lost", "not understood", "not reached", "failed", "refused"],
)
@pytest.mark.parametrize("schedule_style", [disagg.CONTEXT_FIRST, disagg.GENERATION_FIRST])
async def test_only_an_unheard_context_worker_is_told_to_forget(
    answer: Reply | LinkError, released: bool, schedule_style: int
) -> None:
    """A cancellation may find nothing to cancel, and a state be kept; one that said no, or was not there, keeps nothing."""
    known, context, _, _ = two_legs(always(answer), never)
    owner = serving(known, retries=0, schedule_style=schedule_style)
    with pytest.raises(ServingError):
        await owner.answer(call())
    await owner.close()

    assert [asked.body for asked in context.side_calls] == [{"request_id": "r"}] * released


async def test_unknown_model_is_a_404() -> None:
    """The error names the parameter and OpenAI's code."""
    only, _ = worker(model="other")
    with pytest.raises(ServingError) as caught:
        await serving(fleet(only)).answer(call())

    assert (caught.value.status, caught.value.param, caught.value.code) == (404, "model", "model_not_found")


async def test_reply_that_is_no_completion_is_a_502() -> None:
    """Truncated JSON from a worker never reaches a client with a 200."""
    only, _ = worker(always(Reply(200, {"content-type": "application/json"}, b'{"choices": [')))
    with pytest.raises(ServingError) as caught:
        await serving(fleet(only)).answer(call())

    assert caught.value.status == 502


@pytest.mark.parametrize("stock", [True, False])
async def test_stock_fault_answered_as_400_counts_after_a_few(stock: bool) -> None:
    """A stock worker answers its own faults with 400 and no parameter: three in a row open its breaker, ours never."""
    only, _ = worker(always(json_reply({"object": "error", "message": "x", "code": 400}, 400)), stock=stock)
    for _ in range(3):
        with pytest.raises(ServingError):
            await serving(fleet(only)).answer(call())

    assert only.usable() is not stock


# --- failures after the first byte ---


@pytest.mark.parametrize("failure", [WorkerLost("x"), WorkerSilent("x")])
async def test_worker_lost_mid_stream_is_an_error_record(failure: LinkError) -> None:
    """What was relayed stays, one record with an error ends it, no `[DONE]` follows."""
    only, link = worker(always(FakeStream(FIRST, failure)))
    data = await drained(await serving(fleet(only)).answer(call(stream=True)))

    assert data.startswith(FIRST + b'data: {"error":')
    assert b"[DONE]" not in data
    assert len(link.asked) == 1
    assert only.legs[LegName.AGGREGATED, Outcome.FAILURE] == 1


async def test_stream_that_ends_in_the_workers_error_counts_as_its_failure() -> None:
    """The record is relayed once, and the worker's breaker hears of it."""
    record = b'data: {"error":{"message":"x"}}\n\n'
    only, _ = worker(always(FakeStream(FIRST, record)))

    assert await drained(await serving(fleet(only)).answer(call(stream=True))) == FIRST + record
    assert only.legs[LegName.AGGREGATED, Outcome.FAILURE] == 1


async def test_stream_that_begins_with_an_error_is_retried() -> None:
    """Nothing was relayed yet, so another worker may answer."""
    bad, _ = worker(always(FakeStream(b": ping\n\n", b'data: {"error":{"message":"x"}}\n\n')), index=0)
    good, _ = worker(always(FakeStream(FIRST, LAST)), index=1)

    assert await drained(await serving(fleet(bad, good)).answer(call(stream=True))) == FIRST + LAST


async def test_closed_stream_ends_its_leg() -> None:
    """A client that leaves takes the load with it."""
    stream = FakeStream(FIRST, LAST)
    only, _ = worker(always(stream))
    answer = await serving(fleet(only)).answer(call(stream=True))
    assert not isinstance(answer, Answer)
    busy = only.active
    answer.close()
    answer.close()

    assert (busy, only.active, stream.closed) == (1, 0, True)


@pytest.mark.parametrize("style", [disagg.CONTEXT_FIRST, disagg.GENERATION_FIRST])
async def test_cancelled_request_ends_every_open_leg(style: int) -> None:
    """Loads return to zero and the exchanges are cancelled, whichever legs were open."""
    known, context, generation, workers = two_legs(never, never)
    task = asyncio.create_task(serving(known, schedule_style=style).answer(call()))
    await context.was_asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [each.active for each in workers] == [0, 0]
    assert context.cancelled + generation.cancelled == 1 + style


# --- generation first ---


async def test_generation_first_sends_both_legs_with_one_id() -> None:
    """The generation worker is told where and under which id the state will be."""
    known, context, generation, workers = two_legs(
        always(msgpack_reply(context_body())), always(json_reply(COMPLETION))
    )
    workers[0].handoff_endpoint = {"ctx_info_endpoint": ["http://context"]}
    await serving(known, schedule_style=disagg.GENERATION_FIRST).answer(call())
    first, second = (link.asked[0].body["disaggregated_params"] for link in (context, generation))

    assert first["disagg_request_id"] == second["disagg_request_id"] == second["ctx_request_id"]
    assert second["ctx_info_endpoint"] == "http://context"
    assert first["schedule_style"] == second["schedule_style"] == 1


@pytest.mark.parametrize("failing", ["context", "generation"])
async def test_generation_first_failure_of_one_leg_cancels_the_other(failing: str) -> None:
    """The other worker does not go on for nobody."""
    bad = soon(json_reply({}, 500))
    known, context, generation, workers = two_legs(*((bad, never) if failing == "context" else (never, bad)))
    with pytest.raises(ServingError) as caught:
        await serving(known, schedule_style=disagg.GENERATION_FIRST, retries=0).answer(call())

    assert caught.value.status == 502
    assert context.cancelled + generation.cancelled == 1
    assert [each.active for each in workers] == [0, 0]


async def test_generation_first_finished_context_leg_is_the_answer() -> None:
    """The waiting generation leg is let go."""
    known, _, generation, workers = two_legs(soon(msgpack_reply(context_body("stop"))), never)
    answer = await serving(known, schedule_style=disagg.GENERATION_FIRST).answer(call())

    assert isinstance(answer, Answer)
    assert generation.cancelled == 1
    assert [each.active for each in workers] == [0, 0]


async def test_stock_worker_never_sees_what_it_does_not_know() -> None:
    """Harmless fields of ours are dropped for it, and the plain form is used."""
    only, link = worker(always(json_reply(COMPLETION)), stock=True)
    await serving(fleet(only)).answer(call(store=True, parallel_tool_calls=True, max_tokens=3))
    body = link.asked[0].body

    assert set(body) == {"model", "messages", "max_completion_tokens"}
    assert body["messages"] == [{"role": "user", "content": "hi"}]


async def test_every_leg_has_the_time_that_is_left() -> None:
    """The request's deadline bounds each leg and travels to the worker."""
    only, link = worker(always(json_reply(COMPLETION)))
    await serving(fleet(only), deadlines=Deadlines(total=600)).answer(call(deadline=5.0))

    assert link.asked[0].headers["x-packrelay-deadline-ms"] == "5000"
