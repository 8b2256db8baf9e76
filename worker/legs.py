"""The two legs of a disaggregated request, as far as they differ from an ordinary one (trtllm-wire.md 1.3 to 1.8).

    context leg      prefill, one token, then the state is kept here and the reply says where
    generation leg   the state is fetched from the context worker, and the sequence goes on from it, first token included

Generation-first: both legs run at once, the handle follows from the request's id, and the generation worker waits for the state.
What is handed over is what the context engine said, not only its state: so an answer that was complete after one token, or the log
probabilities of an echoed prompt, need no second way.

Engines with a hand-off of their own (`EngineFacts.native_handoff`) move the state between themselves. Then nothing is kept or
fetched here: the reply tells what the engine said, and the generation engine is told what the request says. So the other worker
may be a stock one.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import msgspec
import structlog
from msgspec import Struct, UnsetType, structs

from schemas import disagg
from schemas.codec import DecodeFailure, decode_opaque, encode_frame, encode_opaque, guarded
from schemas.disagg import DisaggregatedParams, OpaqueState
from schemas.openai.errors import ErrorKind, ServingError, invalid
from schemas.openai.options import GenerationOptions
from schemas.openai.usage import Usage
from worker.engines.base import Capability, EngineFacts, Leg, SequenceOutput, Token
from worker.handoff import HandoffClient, Reason, TransferFailed, check_transfer, digest_of, early_handle, endpoint_of
from worker.handoff_store import HandoffStore, Kept
from worker.metrics import Counters
from worker.sequence import HANDOFF_FAILED

_LOWEST_ID: Final = 1 << 40
"""Ids of disaggregated requests start here; below are those that workers mint for themselves."""
_HIGHEST_ID: Final = (1 << 63) - 1

_ANSWERED: Final = frozenset(DisaggregatedParams.__struct_fields__) - {"request_type", "conversation_id"}
"""The fields a reply spells out even when null; newer stock servers refuse `conversation_id` here."""

_log = structlog.get_logger(__name__)


class Prefill(Struct, kw_only=True):
    """What a context worker hands over: what its engine said, the usage, and the state (none if the answer was complete).

    `echo` is the prompt's text where it is to be echoed: the generation worker only has its ids.
    """

    outputs: list[SequenceOutput]
    usage: Usage
    state: bytes | None = None
    echo: str | None = None

    @property
    def prompt(self) -> list[Token]:
        """The prompt's tokens, if their log probabilities were asked for."""
        return self.outputs[0].prompt if self.outputs else []

    @property
    def first_tokens(self) -> list[int]:
        """What the context engine sampled."""
        return [token.id for output in self.outputs for token in output.tokens]


_prefill = msgspec.msgpack.Decoder(Prefill)


def params_of(request: GenerationOptions) -> DisaggregatedParams | None:
    """The request's hand-off, None for an ordinary one."""
    params = request.disaggregated_params
    return None if isinstance(params, UnsetType) else params


def leg_of(params: DisaggregatedParams | None) -> Leg:
    """Which leg a request asks for. Raises a 400 for a type that does not exist."""
    legs = {
        disagg.CONTEXT_ONLY: Leg.CONTEXT,
        disagg.GENERATION_ONLY: Leg.GENERATION,
        disagg.CONTEXT_AND_GENERATION: Leg.BOTH,
    }
    if params is None:
        return Leg.BOTH
    leg = legs.get(params.request_type.lower())
    if leg is None:
        message = f"Invalid value for 'disaggregated_params.request_type': expected one of {', '.join(legs)}."
        raise invalid(message, "disaggregated_params.request_type")
    return leg


def is_early(params: DisaggregatedParams) -> bool:
    """Whether both legs run at once."""
    return params.schedule_style == disagg.GENERATION_FIRST


def first_tokens_of(params: DisaggregatedParams, prefill: Prefill) -> list[int]:
    """What the context leg sampled, as it told the gateway or as it handed over."""
    return params.first_gen_tokens or prefill.first_tokens


def usage_before(params: DisaggregatedParams, prefill: Prefill) -> Usage:
    """The context leg's usage."""
    return params.ctx_usage or prefill.usage


class Handoffs:
    """Keeps states for other workers and fetches theirs. `base_url` is where they find this one."""

    def __init__(
        self, facts: EngineFacts, store: HandoffStore, client: HandoffClient, base_url: str, counters: Counters
    ) -> None:
        self.base_url = base_url
        self.store = store
        self._facts = facts
        self._client = client
        self._counters = counters

    @property
    def published(self) -> dict[str, Any]:
        """What `/server_info` tells generation legs that start first (Any: an engine's own keys may be among it)."""
        if Capability.HANDOFF not in self._facts.capabilities:
            return {}
        if self._facts.native_handoff is not None:
            return self._facts.native_handoff
        # A list, as stock workers have it: one address per rank, the orchestrator takes the first.
        return {"ctx_info_endpoint": [self.base_url]}

    # --- engines that hand over by themselves ---

    def told_by_engine(self, params: DisaggregatedParams, said: DisaggregatedParams) -> DisaggregatedParams:
        """What the reply says: every field, those the engine said as it said them. Raises a 503 if there is no id to go on from."""
        told = _every_field()
        for name, value in structs.asdict(said).items():
            if name in _ANSWERED and not isinstance(value, UnsetType):
                setattr(told, name, value)
        told.schedule_style = params.schedule_style or disagg.CONTEXT_FIRST
        told.return_prompt_token_ids_b64 = params.return_prompt_token_ids_b64 is True
        # An engine that knows one id only goes by that, and the orchestrator takes over what the reply says.
        told.disagg_request_id = told.disagg_request_id or told.ctx_request_id
        told.ctx_request_id = told.ctx_request_id or told.disagg_request_id
        if not told.ctx_request_id:
            raise _lost("The engine named no id for its hand-off.")
        self._counters.handoffs_sent += 1
        return told

    def take_over(self, params: DisaggregatedParams) -> None:
        """Let the generation engine go on from what a request says. Raises a 503 if that names an address that is no peer's."""
        endpoint = endpoint_of(params)
        if endpoint is not None:
            try:
                self._client.check_peer(endpoint)
            except TransferFailed as failure:
                self.failed(failure.reason)
                raise _lost(str(failure)) from failure
        self._counters.handoffs_received += 1

    # --- the context worker's side ---

    async def keep(
        self, params: DisaggregatedParams, prompt: list[int], prefill: Prefill, owner: str
    ) -> tuple[str, DisaggregatedParams]:
        """Keep a state until it is fetched; its handle, and what the reply says of it. Raises a 503 if it cannot be kept."""
        request_id = params.disagg_request_id or _minted_id()
        handle = early_handle(request_id) if is_early(params) else secrets.token_hex(16)
        kept = await asyncio.to_thread(self._packed, handle, prompt, prefill, owner)
        self.store.put(handle, kept)
        # Lazy sweeping would keep the last states of a busy hour for ever.
        asyncio.get_running_loop().call_later(self.store.seconds + 0.1, self.store.sweep)
        told = self.unkept(params, prefill)
        told.encoded_opaque_state = kept.description
        told.ctx_info_endpoint = self.base_url
        told.ctx_request_id = told.disagg_request_id = request_id
        return handle, told

    def unkept(self, params: DisaggregatedParams, prefill: Prefill) -> DisaggregatedParams:
        """What the reply of a context leg says when there is no state: every field, most of them null, as stock workers do."""
        told = _every_field()
        told.first_gen_tokens = prefill.first_tokens
        told.schedule_style = params.schedule_style or disagg.CONTEXT_FIRST
        told.disagg_request_id = params.disagg_request_id or None
        told.return_prompt_token_ids_b64 = params.return_prompt_token_ids_b64 is True
        return told

    def _packed(self, handle: str, prompt: list[int], prefill: Prefill, owner: str) -> Kept:
        data = encode_frame(prefill)
        description = OpaqueState(
            handle=handle,
            model=self._facts.model,
            engine=self._facts.engine,
            tokens=len(prompt),
            size=len(data),
            digest=digest_of(data),
        )
        return Kept(encode_opaque(description), data, owner)

    # --- the generation worker's side ---

    async def fetch(self, params: DisaggregatedParams, prompt: list[int]) -> Prefill:
        """The state a generation request speaks of. Raises a 400 if it speaks of none, a 503 `handoff_failed` if it is lost."""
        endpoint = endpoint_of(params)
        if endpoint is None:
            name = "disaggregated_params.ctx_info_endpoint"
            raise invalid("A generation leg needs the address of the context worker.", name)
        announced = None if is_early(params) else decode_opaque(params.encoded_opaque_state)
        handle = announced.handle if announced else early_handle(_early_id(params))
        try:
            prefill = await self._transfer(endpoint, handle, announced, prompt)
        except TransferFailed as failure:
            self.failed(failure.reason)
            raise _lost(str(failure)) from failure
        self._counters.handoffs_received += 1
        return prefill

    def failed(self, reason: Reason) -> None:
        """Count a hand-off that failed."""
        self._counters.handoff_errors[reason] += 1

    async def _transfer(self, endpoint: str, handle: str, announced: OpaqueState | None, prompt: list[int]) -> Prefill:
        if announced is not None:
            self._check_fit(announced, prompt)
        fetched = await self._client.fetch(endpoint, handle, 0.0 if announced else self.store.seconds)
        if announced is None:
            announced = _described(fetched.description)
            self._check_fit(announced, prompt)
        return await asyncio.to_thread(_unpacked, announced, fetched.data)

    def _check_fit(self, state: OpaqueState, prompt: list[int]) -> None:
        """Only the same engine with the same model can go on from a state, and only with the prompt it stands for."""
        theirs = (state.engine, state.model, state.tokens)
        ours = (self._facts.engine, self._facts.model, len(prompt))
        if theirs != ours:
            raise TransferFailed(Reason.MISMATCH, f"The state is one of {theirs}, this worker needs {ours}.")


def _every_field() -> DisaggregatedParams:
    """The reply's fields, all null."""
    told = DisaggregatedParams(request_type=disagg.CONTEXT_ONLY)
    for name in _ANSWERED:
        setattr(told, name, None)
    return told


def _lost(detail: str) -> ServingError:
    """The 503 that a fresh context leg may cure; the detail is for the log."""
    _log.warning("handoff.failed", detail=detail)
    message = "The prefill state could not be had from the context worker."
    return ServingError(ErrorKind.UNAVAILABLE, message, code=HANDOFF_FAILED)


def _unpacked(announced: OpaqueState, data: bytes) -> Prefill:
    check_transfer(announced, data)
    try:
        prefill: Prefill = guarded(_prefill.decode, data)
    except DecodeFailure as error:
        raise TransferFailed(Reason.DAMAGED, "The state is not a frame of this version.") from error
    return prefill


def _described(description: str) -> OpaqueState:
    try:
        return decode_opaque(description)
    except DecodeFailure as error:
        raise TransferFailed(Reason.DAMAGED, "The state came without a description.") from error


def _early_id(params: DisaggregatedParams) -> int:
    request_id = params.disagg_request_id or params.ctx_request_id
    if not request_id:
        name = "disaggregated_params.disagg_request_id"
        raise invalid("A generation-first request needs an id that both legs know.", name)
    return request_id


def _minted_id() -> int:
    return secrets.randbelow(_HIGHEST_ID - _LOWEST_ID) + _LOWEST_ID


async def with_prompt(
    outputs: AsyncGenerator[SequenceOutput, None], prompt: list[Token]
) -> AsyncGenerator[SequenceOutput, None]:
    """The outputs of a generation leg, the first with the prompt's tokens that only the context leg saw."""
    async with aclosing(outputs):
        async for output in outputs:
            yield structs.replace(output, prompt=prompt) if prompt else output
            prompt = []


async def replayed(outputs: list[SequenceOutput]) -> AsyncGenerator[SequenceOutput, None]:
    """What another engine has said, as if this one said it."""
    for output in outputs:
        yield output
