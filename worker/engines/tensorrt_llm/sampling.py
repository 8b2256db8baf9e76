"""Our sampling as the library's SamplingParams."""

import json
import secrets
from typing import Any, Final

from worker.engines.base import Constraint, EngineRefused, Leg, Sampling, SequenceRequest
from worker.engines.tensorrt_llm.hold_back import HoldBack
from worker.engines.tensorrt_llm.library import Library

EXTENSIONS: Final = frozenset({"top_p_min"})
"""Request fields that every version honours; `optional_extensions` has the others."""
_OPTIONAL_SAMPLING: Final = ("prompt_ignore_length", "thinking_token_budget")

MAX_PROMPT_LOGPROBS: Final = 2048
"""The longest prompt whose log probabilities are told: its logits are one row of the vocabulary per token."""

Arguments = dict[str, Any]
"""Keyword arguments of the library (Any: values of many types)."""


def extensions_of(library: Library) -> frozenset[str]:
    """The request fields that this installation honours beyond what every engine does."""
    found = {name for name in _OPTIONAL_SAMPLING if library.sampling_params.takes(name)}
    if library.generate_async.takes("cache_salt"):
        found.add("cache_salt")
    return EXTENSIONS | found


def sampling_params(request: SequenceRequest, library: Library, vocabulary_size: int) -> Any:
    """The library's SamplingParams of a sequence (Any: an object of the library's). Raises EngineRefused by name."""
    sampling = request.sampling
    arguments: Arguments = {
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "ignore_eos": sampling.ignore_eos,
        "stop_token_ids": sorted(sampling.stop_token_ids) or None,
        # Text is made from the tokens' bytes, here; and the token that ended a sequence is one of its tokens.
        "detokenize": False,
        "include_stop_str_in_output": True,
        **_drawing(sampling),
        **_reports(request),
    }
    if sampling.logit_bias:
        arguments["embedding_bias"] = library.bias(sampling.logit_bias, vocabulary_size)
    if sampling.min_tokens and sampling.stop_token_ids:
        arguments["logits_processor"] = _hold_back(request)
    if sampling.constraint is not None:
        arguments["guided_decoding"] = library.guided_decoding_params(**_guide(sampling.constraint))
    for name in _OPTIONAL_SAMPLING:
        if library.sampling_params.takes(name):
            arguments[name] = getattr(sampling, name)
    return library.sampling_params(**arguments)


def request_arguments(request: SequenceRequest, library: Library) -> Arguments:
    """What `generate_async` is told of a sequence beside its sampling: its priority, and which cached prefixes it may use."""
    found: Arguments = {}
    sampling = request.sampling
    if sampling.priority is not None and library.generate_async.takes("priority"):
        found["priority"] = sampling.priority
    # Tokens of a cached prefix have no logits: where they are asked for, nobody's prefix is used.
    salt = sampling.cache_salt if sampling.prompt_logprobs is None else secrets.token_hex(16)
    if salt is not None and library.generate_async.takes("cache_salt"):
        found["cache_salt"] = salt
    return found


def _drawing(sampling: Sampling) -> Arguments:
    """How the next token is drawn; nothing of it for a greedy sequence, which is what the library makes of that."""
    if sampling.temperature == 0:
        return {}
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "top_p_min": sampling.top_p_min or None,
        # Its seeds are unsigned.
        "seed": None if sampling.seed is None else sampling.seed % 2**64,
    }


def _reports(request: SequenceRequest) -> Arguments:
    found: Arguments = {}
    if request.sampling.logprobs is not None:
        # Zero alternatives would report nothing, the token itself neither.
        found["logprobs"] = max(1, request.sampling.logprobs)
    if request.sampling.prompt_logprobs is not None:
        if len(request.prompt) > MAX_PROMPT_LOGPROBS:
            message = f"Log probabilities are told of prompts of at most {MAX_PROMPT_LOGPROBS} tokens."
            raise EngineRefused(message, "echo")
        # The logits and not `prompt_logprobs`: that tells the likeliest tokens, which need not include the prompt's own.
        found["return_context_logits"] = True
    return found


def _hold_back(request: SequenceRequest) -> HoldBack:
    """For the tokens that are still to come: a generation leg's first was drawn by the context leg."""
    drawn = len(request.first_tokens) if request.leg is Leg.GENERATION else 0
    return HoldBack(sorted(request.sampling.stop_token_ids), request.sampling.min_tokens - drawn)


def _guide(constraint: Constraint) -> Arguments:
    if constraint.kind == "json_object":
        return {"json_object": True}
    if constraint.kind == "json_schema":
        return {"json": json.loads(constraint.text)}
    return {constraint.kind: constraint.text}
