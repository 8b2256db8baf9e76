"""How a request is served: by a context leg and a generation leg, or by one worker alone.

Context first (the usual way):

    client ──► gateway ──(1) the prompt, context_only──► context worker      prefills, samples one token, keeps the state
                   ◄──(2) ids, opaque state, prompt ids, usage──
                   ──(3) the same request + (2), generation_only──► generation worker ──(4) fetches the state──► context worker
                   ◄──(5) every token, the first one included──

Generation first: (1) and (3) are sent at once and the workers find each other; a failure of one leg cancels the other. Whatever
fails before the first byte is relayed may be tried again within the request's budget, with new ids; later it is an error record.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import structlog
from msgspec import UNSET

from gateway.call import Answer, Call
from gateway.cluster import cluster_info
from gateway.context_reply import ContextReply
from gateway.discovery.base import Discovery
from gateway.fleet import Fleet, Pair
from gateway.frames import Frames
from gateway.ids import DisaggregatedIds
from gateway.legs import Leg, LegFailed, LegStream, Retry
from gateway.links.base import BadReply
from gateway.member import LegName, Outcome, Worker
from gateway.order import Order
from gateway.packed import packed
from gateway.replay import WholeStream, replay
from gateway.retry_budget import RetryBudget
from gateway.serving import Serving
from gateway.spliced_frame import RequestFrame
from gateway.state_release import StateRelease
from schemas import disagg
from schemas.cluster import ClusterInfo
from schemas.codec import (
    DEADLINE_HEADER,
    DISAGG_AUTH_HEADER,
    MSGPACK_TYPE,
    REQUEST_ID_HEADER,
    encode_json,
)
from schemas.openai.models import Model

_GENERATION_ONLY = packed(disagg.GENERATION_ONLY)
_CONTEXT_FIRST = packed(disagg.CONTEXT_FIRST)

_log = structlog.get_logger(__name__)


class Orchestrator:
    """Serves requests on a fleet. One per process; all state of a request lives in its own `_Attempt`."""

    def __init__(
        self,
        fleet: Fleet,
        serving: Serving,
        clock: Callable[[], float] = monotonic,
        discovery: Discovery | None = None,
    ) -> None:
        self.fleet = fleet
        self.serving = serving
        self.clock = clock
        self.discovery = discovery
        self.ids = DisaggregatedIds(serving.node_id, serving.process)
        self.releases = StateRelease()
        self.budget = RetryBudget(serving.retry_fraction, clock)
        self.retries = 0

    def models(self) -> list[Model]:
        """What can be asked for."""
        return self.fleet.models()

    def serves(self, model: str) -> bool:
        """Whether some worker has this model."""
        return self.fleet.serves(model)

    def can_serve(self) -> bool:
        """Whether a request would find its workers now."""
        return self.fleet.can_serve()

    def cluster(self) -> ClusterInfo:
        """Which workers there are, and whether they are enough."""
        return cluster_info(self.fleet, self.discovery)

    async def start(self) -> None:
        """Get to know the workers."""
        await self.fleet.start()
        if self.discovery is not None:
            await self.discovery.start()

    async def close(self) -> None:
        """Let go of the workers. Requests must have ended before."""
        if self.discovery is not None:
            await self.discovery.close()
        await self.releases.close()
        await self.fleet.close()

    async def answer(self, call: Call) -> Answer | LegStream | WholeStream:
        """Serve one request. Raises ServingError; cancelling it aborts every open leg at once."""
        if not self.fleet.complete():
            raise self.fleet.nobody(call.view.model)
        frames = Frames(call.view)
        failed: list[Worker] = []
        self.budget.request_came()
        while True:
            attempt = _Attempt(self, call, frames, failed)
            try:
                return await attempt.run()
            except LegFailed as failure:
                if not self._may_try_again(failure, call, failed):
                    raise failure.error.again() from failure
                failed.append(failure.worker)
                self.retries += 1
                _log.info("request.retry", request_id=call.request_id, worker=failure.worker.index, reason=str(failure))

    def _may_try_again(self, failure: LegFailed, call: Call, failed: list[Worker]) -> bool:
        """Whether the request, and all requests together, have another attempt left, and it makes sense."""
        left = len(failed) < self.serving.retries
        return left and self._sensible(failure, call, failed) and self.budget.take()

    def _sensible(self, failure: LegFailed, call: Call, failed: list[Worker]) -> bool:
        """Whether another attempt can help: there is time, and back-pressure is only answered by asking somebody else."""
        if failure.retry is Retry.NEVER or self.clock() >= call.deadline:
            return False
        if failure.outcome is not Outcome.NEUTRAL or failure.retry is Retry.AFRESH:
            return True
        peers = [worker for worker in self.fleet.workers if worker.can_replace(failure.worker, call.view.model)]
        return any(not worker.resting for worker in peers if worker not in failed)


class _Attempt:
    """One try at serving a request: the workers it chose, the ids it minted."""

    def __init__(self, owner: Orchestrator, call: Call, frames: Frames, avoid: list[Worker]) -> None:
        self._fleet = owner.fleet
        self._serving = owner.serving
        self._clock = owner.clock
        self._ids = owner.ids
        self._releases = owner.releases
        self._call = call
        self._frames = frames
        self._avoid = avoid
        self._model = call.view.model
        self._early_answer: Answer | WholeStream | None = None  # What the context leg answered, if that was all.
        self._proof: dict[str, str] = {}  # For the generation leg, that the hand-off comes from here.
        # An abort of the attempt before may still be on its way to a worker: it must not meet this one under the same id.
        self._id = f"{call.request_id}-{len(avoid)}" if avoid else call.request_id

    async def run(self) -> Answer | LegStream | WholeStream:
        """Choose the way and go it."""
        pair = self._fleet.pair(self._model, self._avoid)
        if pair is None:
            alone = self._fleet.aggregated(self._model, self._avoid)
            if alone is None:
                raise self._fleet.nobody(self._model)
            return await self._alone(alone, LegName.AGGREGATED)
        if self._prefills_locally(pair):
            return await self._alone(pair.generation, LegName.GENERATION)
        if self._serving.schedule_style == disagg.GENERATION_FIRST:
            return await self._generation_first(pair)
        return await self._context_first(pair)

    def _prefills_locally(self, pair: Pair) -> bool:
        """Whether the generation worker does the whole request.

        Several sequences have no hand-off, and between stock workers neither has an echoed prompt; a short one is not worth one.
        """
        view: Any = self._call.view
        if self._frames.prompts > 1 or (view.n or 1) > 1 or (view.best_of or 1) > 1:
            return True
        if view.echo is True and pair.context.dialect.stock:
            return True
        short = self._serving.max_local_prefill_length
        return short > 0 and self._frames.prompt_bytes <= 4 * short

    # --- one worker ---

    async def _alone(self, worker: Worker, name: LegName) -> Answer | LegStream:
        frame = self._frames.frame(worker.dialect)
        return await self._answering_leg(worker, name, frame, self._order())

    # --- context first ---

    async def _context_first(self, pair: Pair) -> Answer | LegStream | WholeStream:
        try:
            context = await self._context_leg(pair, self._ids.next())
            if self._early_answer is not None:
                return self._early_answer
            return await self._generation_leg(pair, context)
        except BaseException as error:
            self._let_go(pair.context, error)
            raise

    def _let_go(self, context: Worker, error: BaseException) -> None:
        """The attempt ended: nobody will fetch the state the context worker keeps, or is about to keep.

        It knows when it was itself that failed and said so. When it was interrupted, or its answer was late, lost or not
        understood, it may keep the state: a cancellation that arrives behind the answer takes nothing back.
        """
        knows = isinstance(error, LegFailed) and error.worker is context and not error.unheard
        if not knows:
            self._releases.release(context, self._id)

    async def _context_leg(self, pair: Pair, disagg_request_id: int) -> ContextReply:
        worker = pair.context
        params = {
            "request_type": disagg.CONTEXT_ONLY,
            "disagg_request_id": disagg_request_id,
            "schedule_style": self._serving.schedule_style,
            "return_prompt_token_ids_b64": self._frames.chat and pair.generation.dialect.takes_ids_b64,
        }
        self._add_conversation(params, worker)
        if self._serving.schedule_style == disagg.GENERATION_FIRST:
            params["ctx_request_id"] = disagg_request_id
        params = worker.dialect.fit_params(params)
        frame = self._frames.frame(worker.dialect, disaggregated_params=params, stream=False, stream_options=None)
        with Leg(worker, LegName.CONTEXT) as leg:
            reply = await leg.whole(self._order({"accept": MSGPACK_TYPE}), frame)
            try:
                return self._understood(ContextReply(reply))
            except BadReply as error:
                raise leg.lost(error) from error

    def _understood(self, context: ContextReply) -> ContextReply:
        """All that will be needed of a context reply is read within its leg, whose failure it is if something is wrong with it."""
        if context.finished:
            self._early_answer = self._finished_by_context(context)
        elif self._serving.schedule_style == disagg.CONTEXT_FIRST:
            self._proof = self._signature(context.param)
        return context

    async def _generation_leg(self, pair: Pair, context: ContextReply) -> Answer | LegStream:
        """The client's own request again, with what the context leg found out (trtllm-wire.md 1.4, step 8)."""
        params = context.params | {
            "request_type": _GENERATION_ONLY,
            "schedule_style": _CONTEXT_FIRST,
            "ctx_usage": context.usage,
        }
        changes: dict[str, Any] = {"disaggregated_params": pair.generation.dialect.fit_params(params)}
        if self._frames.chat:
            name = "prompt_token_ids" if context.token_ids_b64 is UNSET else "prompt_token_ids_b64"
            changes[name] = context.token_ids if context.token_ids_b64 is UNSET else context.token_ids_b64
            if self._serving.strip_message_history and changes[name] is not UNSET:
                changes["messages"] = self._frames.last_message(pair.generation.dialect)
        elif context.token_ids is not UNSET:
            changes["prompt"] = context.token_ids
        frame = self._frames.frame(pair.generation.dialect, large=context.large, **changes)
        return await self._answering_leg(pair.generation, LegName.GENERATION, frame, self._order(self._proof))

    def _finished_by_context(self, context: ContextReply) -> Answer | WholeStream:
        """The first token ended the answer: it is delivered whole, as a stream if one was asked for."""
        if not self._call.stream:
            return Answer(body=encode_json(context.whole()))
        return replay(context.typed(chat=self._frames.chat), self._call.view)

    # --- generation first ---

    async def _generation_first(self, pair: Pair) -> Answer | LegStream | WholeStream:
        """Both legs at once: the generation worker waits for the state the context worker makes."""
        disagg_request_id = self._ids.next()
        generation: asyncio.Task[Answer | LegStream] | None = None
        failure: BaseException | None = None
        legs = asyncio.TaskGroup()
        try:
            async with legs:
                generation = legs.create_task(
                    self._early_generation_leg(pair, disagg_request_id), name="generation-leg"
                )
                context = await self._context_leg(pair, disagg_request_id)
                if context.finished:
                    generation.cancel()
        except BaseException as error:  # noqa: BLE001  raised below, once this handler is left
            failure = _first(error)
        try:
            return self._result_of_both(pair, generation, failure)
        finally:
            # A failure, its traceback and this frame would hold one another, and the request's body, until a collection.
            del failure, generation, legs

    def _result_of_both(
        self,
        pair: Pair,
        generation: "asyncio.Task[Answer | LegStream] | None",
        failure: BaseException | None,
    ) -> Answer | LegStream | WholeStream:
        try:
            if failure is not None:
                _abandon(generation)
                self._let_go(pair.context, failure)
                raise failure
            if self._early_answer is not None:
                _abandon(generation)
                return self._early_answer
            if generation is None:
                raise RuntimeError("A leg that did not start cannot have succeeded.")
            return generation.result()
        finally:
            del failure, generation

    async def _early_generation_leg(self, pair: Pair, disagg_request_id: int) -> Answer | LegStream:
        """The client's own request, with where the context worker will be found (trtllm-wire.md 1.7)."""
        endpoint = pair.context.handoff_endpoint.get("ctx_info_endpoint")
        params = pair.context.handoff_endpoint | {
            "request_type": disagg.GENERATION_ONLY,
            "ctx_request_id": disagg_request_id,
            "disagg_request_id": disagg_request_id,
            "schedule_style": disagg.GENERATION_FIRST,
            "ctx_info_endpoint": endpoint[0] if isinstance(endpoint, list) and endpoint else endpoint,
        }
        self._add_conversation(params, pair.generation)
        dialect = pair.generation.dialect
        frame = self._frames.frame(dialect, disaggregated_params=dialect.fit_params(params))
        signature = self._signature({"ctx_info_endpoint": params["ctx_info_endpoint"]}.get)
        return await self._answering_leg(pair.generation, LegName.GENERATION, frame, self._order(signature))

    # --- what every leg has ---

    def _add_conversation(self, params: dict[str, Any], worker: Worker) -> None:
        """The conversation's id for a worker that looks for it in the hand-off; others find it in `conversation_params`."""
        if worker.dialect.conversation_in_params and self._call.conversation_id is not None:
            params["conversation_id"] = self._call.conversation_id

    async def _answering_leg(
        self, worker: Worker, name: LegName, frame: RequestFrame, order: Order
    ) -> Answer | LegStream:
        """The leg whose reply is the client's answer."""
        with Leg(worker, name) as leg:
            if self._call.stream:
                return await leg.stream(order, frame)
            return Answer(body=await leg.answer(order, frame))

    def _order(self, headers: dict[str, str] | None = None) -> Order:
        """What a leg carries beside its frame: whose it is, and how much time is left."""
        left = max(self._call.deadline - self._clock(), 0.001)
        carried = {REQUEST_ID_HEADER: self._id, DEADLINE_HEADER: str(int(left * 1000) or 1)}
        if headers:
            carried |= headers
        return Order(operation=self._call.operation, headers=carried, deadlines=self._serving.deadlines.within(left))

    def _signature(self, param: Callable[[str], Any]) -> dict[str, str]:
        """Proof for the generation worker that the hand-off comes from the gateway, when there is a key to prove it with.

        `param` answers what the hand-off says under a name.
        """
        if self._serving.auth_key is None:
            return {}
        endpoint, state = param("ctx_info_endpoint"), param("encoded_opaque_state")
        if endpoint is None and state is None:
            return {}
        return {DISAGG_AUTH_HEADER: disagg.handoff_signature(self._serving.auth_key, endpoint, state)}


def _first(error: BaseException) -> BaseException:
    """The failure that made the other leg end, out of its group."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    error.with_traceback(
        None
    )  # The frame that raised it still names it: the two would hold everything until a collection.
    first: BaseException = error.exceptions[0]
    return first


def _abandon(generation: "asyncio.Task[Answer | LegStream] | None") -> None:
    """Close the stream of a generation leg whose answer nobody will read."""
    if generation is not None and generation.done() and not generation.cancelled() and generation.exception() is None:
        answer = generation.result()
        if isinstance(answer, LegStream):
            answer.close()
