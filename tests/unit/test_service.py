"""One request's life between the engine and whoever reads its events."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from schemas.codec import decode_opaque
from schemas.disagg import DisaggregatedParams
from schemas.events import Delta, Done, Event, Started
from schemas.openai.errors import ErrorKind, ServingError
from schemas.openai.usage import usage_of
from tests.fakes import ControlledEngine, ControlledSequence
from tests.worker_rig import BASE_URL, chat, collect, completion, make_service
from worker.answer import Request
from worker.engines.base import EngineDead, EngineRefused, HandoffFailed, Leg, SequenceOutput, Token
from worker.service import Service


@pytest.fixture
def engine() -> ControlledEngine:
    return ControlledEngine()


@pytest.fixture
def service(engine: ControlledEngine) -> Service:
    return make_service(engine, engine.facts)


def asking(service: Service, request: Request, request_id: str = "r") -> asyncio.Task[list[Event]]:
    """A request on its way."""
    return asyncio.create_task(collect(service, request, request_id))


async def failure(asked: asyncio.Task[list[Event]]) -> ServingError:
    """The error a request ends with."""
    with pytest.raises(ServingError) as failed:
        await asked
    return failed.value


def deltas(events: list[Event]) -> list[Delta]:
    return [event for event in events if isinstance(event, Delta)]


def done(events: list[Event]) -> Done:
    """The terminal, which there is once and last."""
    (found,) = [event for event in events if isinstance(event, Done)]
    assert events[-1] is found
    return found


class TestOneSequence:
    async def test_an_answer_is_started_deltas_done(self, service: Service, engine: ControlledEngine) -> None:
        """Started counts the prompt, deltas carry the text, Done the usage."""
        asked = asking(service, chat("hello"))
        sequence = await engine.asked()
        sequence.say("Hi", cached_tokens=2)
        sequence.say(" there", "stop")

        started, *rest = await asked
        assert isinstance(started, Started)
        assert (started.prompt_tokens, started.cached_tokens) == (5, 2)
        assert "".join(delta.text for delta in deltas(rest)) == "Hi there"
        assert deltas(rest)[-1].finish_reason == "stop"
        assert done(rest).usage == usage_of(5, 8, 2)

    async def test_nothing_is_said_before_the_engine_speaks(self, service: Service, engine: ControlledEngine) -> None:
        """The first batch comes with the first output: until then a failure can still be a status."""
        async with service.run("chat", "r") as run, aclosing(service.batches(run, chat())) as batches:
            first = asyncio.ensure_future(anext(batches))
            sequence = await engine.asked()
            assert not first.done()

            sequence.say("H")

            assert [type(event) for event in await first] == [Started, Delta]

    async def test_the_end_comes_with_the_last_delta(self, service: Service, engine: ControlledEngine) -> None:
        """The last delta and Done are one batch, so they can be one write."""
        async with service.run("chat", "r") as run, aclosing(service.batches(run, chat())) as batches:
            (asked := asyncio.ensure_future(engine.asked())).add_done_callback(
                lambda done: done.result().say("H", "stop")
            )

            assert [type(event) for event in await anext(batches)] == [Started, Delta, Done]
            assert asked.done()

    async def test_a_finished_sequence_is_not_aborted(self, service: Service, engine: ControlledEngine) -> None:
        """The engine hears of aborts only where something is still running."""
        asked = asking(service, chat())
        (await engine.asked()).say("Hi", "stop")
        await asked

        assert engine.aborted == []

    async def test_a_stop_string_ends_the_sequence(self, service: Service, engine: ControlledEngine) -> None:
        """Where the text ends before the engine does, the engine is told to stop."""
        asked = asking(service, chat(stop="."))
        sequence = await engine.asked()
        sequence.say("One. Two")
        events = await asked

        assert [delta.text for delta in deltas(events)] == ["One"]
        assert sequence.aborts == 1
        assert sequence.closed.is_set()

    async def test_tokens_that_came_meanwhile_are_one_delta(self, service: Service, engine: ControlledEngine) -> None:
        """A late reader gets what the engine said since, at once."""
        async with service.run("chat", "r") as run, aclosing(service.batches(run, chat())) as batches:
            first = asyncio.ensure_future(anext(batches))
            sequence = await engine.asked()
            sequence.say("a")
            await first
            for letter in "bcd":
                sequence.say(letter)

            (delta,) = await anext(batches)
            assert isinstance(delta, Delta)
            assert (delta.text, delta.tokens) == ("bcd", 3)

    async def test_no_tokens_ask_nothing_of_the_engine(self, service: Service, engine: ControlledEngine) -> None:
        """A completion of zero tokens is its echo."""
        events = await collect(service, completion("abc", max_tokens=0, echo=True))

        assert [(delta.text, delta.finish_reason) for delta in deltas(events)] == [("abc", "length")]
        assert done(events).usage == usage_of(3, 0)
        assert engine.sequences == []


class TestSeveralSequences:
    async def test_choices_are_told_apart(self, service: Service, engine: ControlledEngine) -> None:
        """With n, every delta has its choice's index, and the prompt is counted once."""
        asked = asking(service, chat("hello", n=2))
        for number, text in enumerate(("one", "two")):
            (await engine.asked(number)).say(text, "stop")
        events = await asked

        texts = {delta.index: delta.text for delta in deltas(events)}
        assert sorted(texts.values()) == ["one", "two"]
        assert done(events).usage == usage_of(5, 6)

    async def test_prompts_are_choices_in_their_order(self, service: Service, engine: ControlledEngine) -> None:
        """A list of prompts has a choice per prompt; their tokens add up."""
        asked = asking(service, completion(["a", "bb"]))
        for number in range(2):
            sequence = await engine.asked(number)
            sequence.say(str(len(sequence.request.prompt)), "stop")
        events = await asked

        assert {delta.index: delta.text for delta in deltas(events)} == {0: "1", 1: "2"}
        assert done(events).usage == usage_of(3, 2)

    async def test_a_batch_holds_what_all_have_ready(self, service: Service, engine: ControlledEngine) -> None:
        """Of each choice at most one delta is in a batch, merged from everything it has said since."""
        async with service.run("chat", "r") as run, aclosing(service.batches(run, chat(n=2))) as batches:
            first = asyncio.ensure_future(anext(batches))
            one, two = await engine.asked(0), await engine.asked(1)
            one.say("a")
            await first
            for text, other in ("bx", "cy"):
                await let_run(partial(one.say, text))
                await let_run(partial(two.say, other))

            batch = [event for event in await anext(batches) if isinstance(event, Delta)]
            assert sorted(delta.text for delta in batch) == ["bc", "xy"]

    async def test_one_failure_ends_all(self, service: Service, engine: ControlledEngine) -> None:
        """The other choices are aborted, and the request has one error."""
        asked = asking(service, chat(n=2))
        one, two = await engine.asked(0), await engine.asked(1)
        one.fail(RuntimeError("broken"))

        assert (await failure(asked)).kind is ErrorKind.INTERNAL
        assert (two.aborts, two.closed.is_set()) == (1, True)

    async def test_the_best_candidates_become_the_choices(self, service: Service, engine: ControlledEngine) -> None:
        """Of best_of candidates the n most likely are answered, all are paid for."""
        asked = asking(service, completion("a", best_of=3, n=2))
        for number, (text, logprob) in enumerate((("low", -3.0), ("top", -1.0), ("mid", -2.0))):
            tokens = [Token(id=byte, data=bytes([byte]), logprob=logprob) for byte in text.encode()]
            (await engine.asked(number)).put(SequenceOutput(tokens=tokens, finish_reason="stop"))
        events = await asked

        assert {delta.index: delta.text for delta in deltas(events)} == {0: "top", 1: "mid"}
        assert done(events).usage == usage_of(1, 9)


async def let_run(step: Callable[[], None]) -> None:
    """Do something, then let everybody react."""
    step()
    for _ in range(10):
        await asyncio.sleep(0)


class TestFailures:
    async def test_a_refused_request_starts_nothing(self, service: Service, engine: ControlledEngine) -> None:
        """What the plan refuses is raised before the engine is asked."""
        error = await failure(asking(service, chat("x" * 100)))

        assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "messages")
        assert engine.sequences == []

    @pytest.mark.parametrize(
        ("raised", "kind", "code"),
        [
            (EngineRefused("No such grammar.", "response_format"), ErrorKind.INVALID, None),
            (HandoffFailed("10.0.0.1 lost it"), ErrorKind.UNAVAILABLE, "handoff_failed"),
            (EngineDead("GPU 3 fell off"), ErrorKind.UNAVAILABLE, "engine_dead"),
            (RuntimeError("/srv/model.py, line 3"), ErrorKind.INTERNAL, "engine_failed"),
            (TimeoutError("inside the engine"), ErrorKind.INTERNAL, "engine_failed"),
        ],
    )
    @pytest.mark.parametrize("begun", [False, True], ids=["before the first token", "after it"])
    async def test_what_the_engine_raises_has_a_kind(
        self, service: Service, engine: ControlledEngine, raised: Exception, kind: ErrorKind, code: str, begun: bool
    ) -> None:
        """Each kind of engine error is one kind of error for the client, whenever it comes."""
        asked = asking(service, chat())
        sequence = await engine.asked()
        if begun:
            await let_run(lambda: sequence.say("H"))
        sequence.fail(raised)
        error = await failure(asked)

        assert (error.kind, error.code) == (kind, code)
        assert isinstance(raised, EngineRefused) == (str(raised) in error.message)

    async def test_an_engine_that_just_stops_is_an_error(self, service: Service, engine: ControlledEngine) -> None:
        """A sequence that ends without a finish reason is no answer."""
        asked = asking(service, chat())
        sequence = await engine.asked()
        await let_run(lambda: sequence.say("H"))
        sequence.fail(StopAsyncIteration())

        assert (await failure(asked)).kind is ErrorKind.INTERNAL

    async def test_closing_aborts_once(self, service: Service, engine: ControlledEngine) -> None:
        """Who stops reading ends the engine's work for it."""
        async with service.run("chat", "r") as run, aclosing(service.batches(run, chat(n=2))) as batches:
            first = asyncio.ensure_future(anext(batches))
            one, two = await engine.asked(0), await engine.asked(1)
            one.say("a")
            await first

        assert [(each.aborts, each.closed.is_set()) for each in (one, two)] == [(1, True), (1, True)]

    async def test_cancelling_before_the_first_token_aborts(self, service: Service, engine: ControlledEngine) -> None:
        """Prefill is not waited for."""
        asked = asking(service, chat())
        sequence = await engine.asked()
        asked.cancel()
        await asyncio.wait({asked})

        assert (sequence.aborts, sequence.closed.is_set(), service.in_flight) == (1, True, 0)
        assert service.counters.requests["chat", "disconnected"] == 1


class TestEndedFromOutside:
    async def test_a_deadline_ends_a_request(self, service: Service, engine: ControlledEngine) -> None:
        """When its time is over the request fails with a 504, and the engine stops."""
        error = await failure(asyncio.create_task(collect(service, chat(), seconds=0.01)))

        assert (error.status, error.code) == (504, "deadline")
        assert engine.sequences[0].aborts == 1

    async def test_an_abort_ends_exactly_its_request(self, service: Service, engine: ControlledEngine) -> None:
        """An id that only begins the same is another request."""
        mine, other = asking(service, chat(), "a"), asking(service, chat(), "ab")
        await engine.asked(1)
        service.abort("a")
        error = await failure(mine)

        assert (error.kind, error.code) == (ErrorKind.CANCELLED, "aborted")
        assert not other.done()
        other.cancel()
        await asyncio.wait({other})

    async def test_aborting_is_idempotent(self, service: Service, engine: ControlledEngine) -> None:
        """Unknown ids and second aborts change nothing."""
        asked = asking(service, chat(), "a")
        sequence = await engine.asked()
        for request_id in ("unknown", "a", "a"):
            service.abort(request_id)
        await failure(asked)
        service.abort("a")

        assert sequence.aborts == 1

    async def test_requests_of_one_id_are_different_sequences(self, service: Service, engine: ControlledEngine) -> None:
        """The engine never sees an id twice, whatever clients send."""
        both = [asking(service, chat(), "a"), asking(service, chat(), "a")]
        one, two = await engine.asked(0), await engine.asked(1)

        assert one.request.request_id != two.request.request_id
        one.say("x", "stop")
        two.say("y", "stop")
        await asyncio.gather(*both)


class TestAdmission:
    async def test_more_than_the_most_are_refused(self, engine: ControlledEngine) -> None:
        """One too many is a 429 at once; when one is done another gets in."""
        service = make_service(engine, engine.facts, max_requests=1)
        held = asking(service, chat())
        sequence = await engine.asked()
        error = await failure(asking(service, chat()))
        sequence.say("x", "stop")
        await held

        assert (error.status, error.retry_after) == (429, 1.0)
        assert service.in_flight == 0
        asked = asking(service, chat())
        (await engine.asked(1)).say("x", "stop")
        await asked

    def test_another_model_is_not_found(self, service: Service) -> None:
        """The name that is served is the only one."""
        with pytest.raises(ServingError) as missing:
            service.check_model("other")

        assert (missing.value.status, missing.value.code) == (404, "model_not_found")

    def test_a_dead_engine_is_unavailable(self, service: Service, engine: ControlledEngine) -> None:
        """Health says what the engine says of itself."""
        service.check()
        engine.dead = True

        with pytest.raises(ServingError) as dead:
            service.check()

        assert dead.value.status == 503

    async def test_a_probe_generates_one_token(self, service: Service, engine: ControlledEngine) -> None:
        """It asks the engine for one greedy token, and fails if that does."""
        probing = asyncio.create_task(service.probe())
        sequence = await engine.asked()
        sequence.say("x", "length")
        await probing
        failing = asyncio.create_task(service.probe())
        (await engine.asked(1)).fail(RuntimeError("broken"))

        assert (sequence.request.sampling.max_tokens, sequence.request.sampling.temperature) == (1, 0.0)
        with pytest.raises(ServingError, match="does not generate"):
            await failing


class TestFinish:
    async def test_running_requests_finish(self, service: Service, engine: ControlledEngine) -> None:
        """Within the grace they end as if nothing was; nobody new is let in."""
        asked = asking(service, chat())
        sequence = await engine.asked()
        service.drain()
        finishing = asyncio.create_task(service.finish(5.0, asyncio.Event()))
        refused = await failure(asking(service, chat()))
        sequence.say("x", "stop")
        await finishing

        assert done(await asked).usage.completion_tokens == 1
        assert (refused.status, refused.code, refused.retry_after) == (503, "shutting_down", 1.0)

    async def test_the_rest_is_told(self, service: Service, engine: ControlledEngine) -> None:
        """When the grace is over, requests end with an error and are aborted."""
        asked = asking(service, chat())
        sequence = await engine.asked()
        await service.finish(0.01, asyncio.Event())

        assert (await failure(asked)).code == "shutting_down"
        assert sequence.aborts == 1

    async def test_a_hurry_skips_the_wait(self, service: Service, engine: ControlledEngine) -> None:
        """The second signal ends what the first one waits for."""
        asked = asking(service, chat())
        await engine.asked()
        hurry = asyncio.Event()
        finishing = asyncio.create_task(service.finish(60.0, hurry))
        hurry.set()
        await finishing

        assert (await failure(asked)).code == "shutting_down"


CONTEXT = {"request_type": "context_only", "disagg_request_id": 2**62 + 1, "schedule_style": 0}


def context(**fields: Any) -> Request:
    """A context leg. Any: fields of every type."""
    return chat("hello", **{"disaggregated_params": CONTEXT} | fields)


async def prefilled(engine: ControlledEngine, number: int = 0) -> ControlledSequence:
    """Let a context leg's engine sample one token and report a state."""
    sequence = await engine.asked(number)
    sequence.say("H", "length", state=b"the state", cached_tokens=2)
    return sequence


def handed(events: list[Event]) -> DisaggregatedParams:
    handoff = done(events).handoff
    assert handoff
    assert handoff.prompt_token_ids == list(b"hello")
    return handoff.params


class TestContextLeg:
    async def test_a_state_is_kept_and_described(self, service: Service, engine: ControlledEngine) -> None:
        """The reply names the state, its place, the token and both ids, exactly."""
        asked = asking(service, context())
        await prefilled(engine)
        params = handed(await asked)
        state = decode_opaque(params.encoded_opaque_state)

        assert (params.ctx_request_id, params.disagg_request_id) == (2**62 + 1, 2**62 + 1)
        assert (params.first_gen_tokens, params.ctx_info_endpoint) == ([ord("H")], BASE_URL)
        assert (state.model, state.engine, state.tokens) == ("fake", "controlled", 5)
        assert await service.handoffs.store.take(state.handle)

    async def test_every_other_field_is_null(self, service: Service, engine: ControlledEngine) -> None:
        """Stock servers write all fields, so ours do; the one that newer ones refuse stays away."""
        asked = asking(service, context())
        await prefilled(engine)
        params = handed(await asked)

        nulls = {name for name in params.__struct_fields__ if getattr(params, name) is None}
        assert nulls == {
            "first_gen_log_probs",
            "first_gen_logits",
            "draft_tokens",
            "ctx_dp_rank",
            "ctx_usage",
            "resolved_thinking",
        }
        assert not params.conversation_id
        assert (params.schedule_style, params.return_prompt_token_ids_b64) == (0, False)

    async def test_the_engine_is_asked_for_one_token(self, service: Service, engine: ControlledEngine) -> None:
        """The cap is this leg's; everything else is sampled as the client asked."""
        asked = asking(service, context(max_tokens=30, temperature=0.5))
        sequence = await prefilled(engine)
        await asked

        assert (sequence.request.leg, sequence.request.sampling.max_tokens) == (Leg.CONTEXT, 1)
        assert sequence.request.sampling.temperature == 0.5

    async def test_a_finished_answer_has_no_state(self, service: Service, engine: ControlledEngine) -> None:
        """When the first token ends it, the reply is whole, and nothing is kept."""
        asked = asking(service, context())
        (await engine.asked()).say("", "stop", stop_token=0)
        events = await asked

        assert deltas(events)[-1].finish_reason == "stop"
        assert (handed(events).encoded_opaque_state, handed(events).ctx_request_id) == (None, None)
        assert len(service.handoffs.store) == 0

    async def test_a_stop_string_of_one_token_finishes_too(self, service: Service, engine: ControlledEngine) -> None:
        """The engine has more to say, but the answer is over."""
        asked = asking(service, context(stop="H"))
        await prefilled(engine)
        events = await asked

        assert deltas(events)[-1].finish_reason == "stop"
        assert len(service.handoffs.store) == 0

    async def test_an_early_leg_is_found_by_its_id(self, service: Service, engine: ControlledEngine) -> None:
        """Generation-first: the generation worker waits under the request's id, also for an answer that is complete."""
        waiting = asyncio.create_task(service.handoffs.store.take(f"id-{2**62 + 1}", wait=5.0))
        asked = asking(service, context(disaggregated_params={**CONTEXT, "schedule_style": 1}))
        (await engine.asked()).say("", "stop", stop_token=0)
        await asked

        assert await waiting is not None

    async def test_an_id_is_minted_where_none_is_given(self, service: Service, engine: ControlledEngine) -> None:
        """Ids of workers have up to 63 bits, and leave the lowest 40 to others."""
        asked = asking(service, context(disaggregated_params={"request_type": "context_only"}))
        await prefilled(engine)

        assert 2**40 <= (handed(await asked).disagg_request_id or 0) < 2**63

    async def test_an_abort_frees_the_state(self, service: Service, engine: ControlledEngine) -> None:
        """A request that nobody goes on with leaves nothing behind."""
        asked = asking(service, context(), "a")
        await prefilled(engine)
        await asked
        service.abort("a")

        assert len(service.handoffs.store) == 0

    async def test_a_reply_that_is_not_delivered_frees_the_state(
        self, service: Service, engine: ControlledEngine
    ) -> None:
        """Whoever was to hear of the state has left, so it is dropped."""
        engine_speaks = asyncio.create_task(prefilled(engine))

        async def undeliverable() -> None:
            async with service.run("chat", "r") as run:
                await anext(service.batches(run, context()))
                assert len(service.handoffs.store) == 1
                raise OSError("gone")

        with pytest.raises(OSError, match="gone"):
            await undeliverable()
        await engine_speaks

        assert len(service.handoffs.store) == 0

    async def test_an_engine_without_a_state_is_a_failed_handoff(
        self, service: Service, engine: ControlledEngine
    ) -> None:
        """An unfinished answer that cannot go on elsewhere is an error."""
        asked = asking(service, context())
        (await engine.asked()).say("H", "length")

        assert (await failure(asked)).code == "handoff_failed"

    @pytest.mark.parametrize(
        ("request_", "param"),
        [
            (context(n=2), "n"),
            (context(stream=True), "stream"),
            (completion(["a", "b"], disaggregated_params=CONTEXT), "prompt"),
            (completion("a", best_of=2, disaggregated_params=CONTEXT), "best_of"),
            (context(disaggregated_params={"request_type": "both"}), "disaggregated_params.request_type"),
            (
                context(disaggregated_params={"request_type": "generation_only"}),
                "disaggregated_params.ctx_info_endpoint",
            ),
        ],
    )
    async def test_what_a_leg_cannot_be_is_a_400(self, service: Service, request_: Request, param: str) -> None:
        """One prompt, one choice, not streamed; the field at fault is named."""
        error = await failure(asking(service, request_))

        assert (error.status, error.param) == (400, param)
