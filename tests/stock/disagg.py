"""Both legs of disaggregated serving as a stock worker does them: what it answers, and what it must get back."""

import asyncio
import hashlib
import hmac
import json
from array import array
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.stock.behaviour import Behaviour
from tests.stock.protocol import ChatRequest, DisaggregatedParams, Generation
from tests.stock.versions import Version

AUTH_HEADER = "x-trtllm-disagg-auth"
CONTEXT_FIRST, GENERATION_FIRST = 0, 1

Json = dict[str, Any]


class Refused(ValueError):
    """A leg that is not what it should be. The worker answers it like any exception: 400, BadRequestError."""


@dataclass
class HandedOver:
    """What a context leg answered, to compare with what comes back."""

    params: Json
    usage: Json
    prompt: list[int]
    prompt_b64: str | None


@dataclass
class Meeting:
    """Where the two legs of a generation-first request find each other, worker to worker."""

    generation_is_here: asyncio.Event = field(default_factory=asyncio.Event)
    context_is_done: asyncio.Event = field(default_factory=asyncio.Event)
    usage: Json = field(default_factory=dict)


class Ledger:
    """What the workers of one group know of each other: the transfer of states, which goes past the orchestrator."""

    def __init__(self) -> None:
        self.handed: dict[int, HandedOver] = {}
        self._meetings: dict[int, Meeting] = {}
        self._numbers = count(1)

    def meeting(self, disagg_id: int) -> Meeting:
        """The meeting of a generation-first request, made by whoever comes first."""
        return self._meetings.setdefault(disagg_id, Meeting())

    def fresh_id(self) -> int:
        """An id of a worker's own: below 2^40, where no orchestrator's ids are."""
        return next(self._numbers)


def context_params(
    request: DisaggregatedParams, ledger: Ledger, behaviour: Behaviour, first_tokens: list[int], *, ended: bool
) -> Json:
    """The hand-off object of a context leg: every key, nulls included. An early end has no ids to go on from."""
    given = request.disagg_request_id
    wanted = behaviour.replaced_disagg_id or (ledger.fresh_id() if given is None else given)
    return {
        "request_type": "context_only",
        "first_gen_tokens": first_tokens,
        "first_gen_log_probs": None,
        "first_gen_logits": None,
        "ctx_request_id": None if ended else ledger.fresh_id(),
        "encoded_opaque_state": b64encode(hashlib.sha256(str(wanted).encode()).digest() + b"\xfb\xff").decode(),
        "draft_tokens": None,
        "disagg_request_id": None if ended else wanted,
        "ctx_dp_rank": 0,
        "ctx_info_endpoint": behaviour.ctx_info_endpoint,
        "schedule_style": request.schedule_style,
        "ctx_usage": None,
        "return_prompt_token_ids_b64": request.return_prompt_token_ids_b64,
        "resolved_thinking": None,
    }


def prompt_ids(request: Generation, prompt: list[int]) -> Json:
    """How a context leg reports the prompt's token ids: base64 only for chat, and only if asked."""
    params = request.disaggregated_params
    if isinstance(request, ChatRequest) and params and params.return_prompt_token_ids_b64:
        little_endian = array("i", prompt)
        return {"prompt_token_ids": None, "prompt_token_ids_b64": b64encode(little_endian.tobytes()).decode()}
    return {"prompt_token_ids": prompt}


def handed_over(body: Json, ledger: Ledger, version: Version) -> HandedOver:
    """What the context leg handed over, taken once; refused when the generation request is not exactly its echo."""
    params = body["disaggregated_params"]
    handed = ledger.handed.get(params.get("disagg_request_id"))
    if handed is None:
        raise Refused(f"no state for the id {params.get('disagg_request_id')}")
    wanted = handed.params | {"request_type": "generation_only", "schedule_style": 0, "ctx_usage": handed.usage}
    wanted = version.known(wanted)
    _equal("disaggregated_params", params, wanted)
    _same_prompt(body, handed)
    del ledger.handed[params["disagg_request_id"]]
    return handed


def _same_prompt(body: Json, handed: HandedOver) -> None:
    if "messages" not in body:
        _equal("prompt", body["prompt"], handed.prompt)
    elif handed.prompt_b64 is not None:
        _equal("prompt_token_ids_b64", body.get("prompt_token_ids_b64"), handed.prompt_b64)
    else:
        _equal("prompt_token_ids", body.get("prompt_token_ids"), handed.prompt)


def _equal(name: str, got: Any, wanted: Any) -> None:
    if got != wanted:
        raise Refused(f"{name} did not come back as it was given: {got!r} is not {wanted!r}")


def check_generation_first(params: Json, server_keys: Json) -> None:
    """A generation-first leg names its id twice and carries the context server's own keys."""
    _equal("ctx_request_id", params.get("ctx_request_id"), params.get("disagg_request_id"))
    for name, value in server_keys.items():
        _equal(name, params.get(name), value[0] if isinstance(value, list) else value)


def check_signature(key: str | None, params: Json, headers: Mapping[str, str]) -> None:
    """With a key, a hand-off that names a state or an endpoint must be signed."""
    state, endpoint = params.get("encoded_opaque_state"), params.get("ctx_info_endpoint")
    if key is None or (state is None and endpoint is None):
        return
    if not hmac.compare_digest(headers.get(AUTH_HEADER, "").encode(), signature(key, state, endpoint).encode()):
        raise Refused("Invalid internal disaggregated request authentication")


def signature(key: str, state: str | None, endpoint: str | list[str] | None) -> str:
    """The value of the header: HMAC-SHA256 over compact JSON with sorted keys."""
    first = endpoint[0] if isinstance(endpoint, list) else endpoint
    message = json.dumps(
        {"ctx_info_endpoint": first, "encoded_opaque_state": state}, sort_keys=True, separators=(",", ":")
    )
    return "sha256=" + hmac.new(key.encode(), message.encode(), hashlib.sha256).hexdigest()
