"""`disaggregated_params` as the library's DisaggregatedParams, both ways. Source: trtllm-wire.md 1.3 and 8."""

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, Final

from msgspec import UnsetType, to_builtins

from schemas import disagg
from schemas.disagg import DisaggregatedParams
from worker.engines.base import EngineRefused, HandoffFailed, Leg, SequenceRequest
from worker.engines.tensorrt_llm.library import Foreign, Library

_PARAM: Final = "disaggregated_params"
_DISPENSABLE: Final = frozenset({"disagg_request_id", "ctx_usage", "schedule_style"})
"""What a version that does not know it can do without: its own `ctx_request_id` is the id, there is one order, usage is ours."""
_UNKNOWN_LOGITS: Final = "first_gen_logits"

Arguments = dict[str, Foreign]


# --- to the library ---


def library_params(request: SequenceRequest, library: Library) -> Foreign | None:
    """The library's params of a leg, None for a sequence that is done here whole.

    Raises EngineRefused for what this version cannot be told, HandoffFailed for what is no hand-off.
    """
    if request.leg is Leg.BOTH:
        return None
    if not library.generate_async.takes("disaggregated_params"):
        raise EngineRefused(f"TensorRT-LLM {library.version} has no disaggregated serving.", _PARAM)
    params = request.handoff or DisaggregatedParams(request_type="")
    _check_order(params, library)
    _check_logprobs(request, library)
    if request.leg is Leg.CONTEXT:
        return library.disaggregated_params(
            request_type=disagg.CONTEXT_ONLY,
            **_known({"disagg_request_id": params.disagg_request_id}, library),
            **_order(params, library),
        )
    found = _handed_over(params, library)
    return library.disaggregated_params(
        request_type=disagg.GENERATION_ONLY, **_known(found, library), **_order(params, library)
    )


def _handed_over(params: DisaggregatedParams, library: Library) -> Arguments:
    """What the context engine said, as the library has it. In generation-first order it has said nothing yet."""
    if _value(params.first_gen_logits) is not None:
        raise EngineRefused("Logits of the first token cannot be handed over.", f"{_PARAM}.{_UNKNOWN_LOGITS}")
    endpoint = _value(params.ctx_info_endpoint)
    if isinstance(endpoint, list):
        endpoint = endpoint[0] if endpoint else None
    usage = _value(params.ctx_usage)
    return {
        "first_gen_tokens": _value(params.first_gen_tokens),
        "first_gen_log_probs": _log_probs(_value(params.first_gen_log_probs), library),
        "ctx_request_id": _value(params.ctx_request_id),
        "opaque_state": _opaque_state(_value(params.encoded_opaque_state)),
        "draft_tokens": _value(params.draft_tokens),
        "disagg_request_id": _value(params.disagg_request_id),
        "ctx_dp_rank": _value(params.ctx_dp_rank),
        "ctx_info_endpoint": endpoint,
        "ctx_usage": None if usage is None else to_builtins(usage),
    }


def _known(values: Arguments, library: Library) -> Arguments:
    """Those with a value, for this version. Refuses by name what it does not know and cannot do without."""
    known = {}
    for name, value in values.items():
        if value is None or isinstance(value, UnsetType):
            continue
        if _always(name) or library.disaggregated_params.takes(name):
            known[name] = value
        elif name not in _DISPENSABLE:
            message = f"TensorRT-LLM {library.version} does not know this field: both legs need the same version."
            raise EngineRefused(message, f"{_PARAM}.{name}")
    return known


def _always(name: str) -> bool:
    return name in {"first_gen_tokens", "ctx_request_id", "opaque_state", "draft_tokens"}


def _check_order(params: DisaggregatedParams, library: Library) -> None:
    early = params.schedule_style == disagg.GENERATION_FIRST
    if early and not library.disaggregated_params.takes("schedule_style"):
        message = f"TensorRT-LLM {library.version} knows the order context first only."
        raise EngineRefused(message, f"{_PARAM}.schedule_style")


def _check_logprobs(request: SequenceRequest, library: Library) -> None:
    """The replayed first token has log probabilities only if they are handed over; without them the library fails."""
    if request.sampling.logprobs is not None and not library.disaggregated_params.takes("first_gen_log_probs"):
        message = f"TensorRT-LLM {library.version} cannot hand log probabilities over to the generation leg."
        raise EngineRefused(message, "logprobs")


def _order(params: DisaggregatedParams, library: Library) -> Arguments:
    style = _value(params.schedule_style)
    if style is None or library.schedule_style is None or not library.disaggregated_params.takes("schedule_style"):
        return {}
    return {"schedule_style": library.schedule_style(style)}


def _opaque_state(encoded: str | None) -> bytes | None:
    try:
        return None if encoded is None else b64decode(encoded, validate=True)
    except ValueError as error:
        raise HandoffFailed("The opaque state is not base64.") from error


def _log_probs(positions: list[Any] | None, library: Library) -> list[Any] | None:
    """Per position a map of Logprobs, or a plain number. Any: as the context engine wrote it."""
    if positions is None:
        return None
    try:
        return [_log_prob(position, library.logprob) for position in positions]
    except (KeyError, TypeError, ValueError) as error:
        raise HandoffFailed("The first token's log probabilities are not what a context engine writes.") from error


def _log_prob(position: Any, logprob: Callable[..., Foreign]) -> Any:
    if isinstance(position, list):
        return {
            int(entry["token_id"]): logprob(logprob=float(entry["logprob"]), rank=entry.get("rank"))
            for entry in position
        }
    return float(position)


# --- from the library ---


def wire_params(said: Foreign | None, library: Library) -> DisaggregatedParams | None:
    """What a context engine said, as the reply tells it; None if it said nothing. Fields this version does not know stay unset."""
    if said is None:
        return None
    state = said.opaque_state
    told = DisaggregatedParams(
        request_type=disagg.CONTEXT_ONLY,
        first_gen_tokens=said.first_gen_tokens,
        ctx_request_id=said.ctx_request_id,
        encoded_opaque_state=None if state is None else b64encode(state).decode("ascii"),
        draft_tokens=said.draft_tokens,
    )
    for name in ("disagg_request_id", "ctx_dp_rank", "ctx_info_endpoint"):
        if library.disaggregated_params.takes(name):
            setattr(told, name, getattr(said, name))
    if library.disaggregated_params.takes("first_gen_log_probs"):
        told.first_gen_log_probs = _told_log_probs(said.first_gen_log_probs)
    return told


def cached_before(said: Foreign | None, library: Library) -> int:
    """The prompt tokens that the context leg found in its cache, as far as its engine told the generation leg's."""
    usage = said.ctx_usage if said is not None and library.disaggregated_params.takes("ctx_usage") else None
    details = (usage or {}).get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def _told_log_probs(positions: list[Foreign] | None) -> list[Any] | None:
    if positions is None:
        return None
    return [_told_log_prob(position) for position in positions]


def _told_log_prob(position: Foreign) -> Any:
    if isinstance(position, dict):
        return [{"token_id": token, "logprob": entry.logprob, "rank": entry.rank} for token, entry in position.items()]
    return float(position)


def _value(field: Any) -> Any:
    """A field's value: absent and null are one here. Any: fields of every type."""
    return None if isinstance(field, UnsetType) else field
