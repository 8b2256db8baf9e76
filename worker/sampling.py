"""Sampling fields of a request, resolved: defaults in place, ids in the vocabulary, limits within the context."""

from schemas.openai.chat import ChatOptions
from schemas.openai.completions import CompletionOptions
from schemas.openai.errors import ServingError, invalid
from schemas.openai.options import GenerationOptions
from worker.engines.base import Capability, Constraint, EngineFacts, Sampling
from worker.fields import given, require


def sampling_of(
    request: GenerationOptions,
    facts: EngineFacts,
    *,
    max_tokens: int,
    logprobs: int | None,
    constraint: Constraint | None,
) -> Sampling:
    """How a request samples. `max_tokens` and `logprobs` are what the endpoint's own fields mean."""
    temperature, top_p = given(request.temperature, 1.0), given(request.top_p, 1.0)
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=min(given(request.min_tokens, 0), max_tokens),
        # A nucleus of nothing holds the most likely token alone.
        temperature=temperature if top_p > 0 else 0.0,
        top_p=top_p if top_p > 0 else 1.0,
        top_k=max(0, given(request.top_k, 0)),
        min_p=given(request.min_p, 0.0),
        repetition_penalty=given(request.repetition_penalty, 1.0),
        presence_penalty=given(request.presence_penalty, 0.0),
        frequency_penalty=given(request.frequency_penalty, 0.0),
        seed=given(request.seed, None),
        logit_bias=_logit_bias(request, facts),
        stop_token_ids=_stop_token_ids(request, facts),
        ignore_eos=given(request.ignore_eos, False),
        logprobs=logprobs,
        constraint=constraint,
        top_p_min=given(request.top_p_min, 0.0),
        prompt_ignore_length=given(request.prompt_ignore_length, 0),
        thinking_token_budget=given(request.thinking_token_budget, None),
        cache_salt=given(request.cache_salt, None) if isinstance(request, ChatOptions) else None,
        priority=given(request.priority, None),
    )


def limit_for(prompt_tokens: int, explicit: int | None, facts: EngineFacts, param: str) -> int:
    """How many tokens may be generated after a prompt: what was asked for, as far as the context has room."""
    room = facts.context_length - prompt_tokens
    if room <= 0:
        raise context_exceeded(f"{prompt_tokens}", facts, param)
    return room if explicit is None else min(explicit, room)


def context_exceeded(prompt_tokens: str, facts: EngineFacts, param: str) -> ServingError:
    """The 400 that clients look for to shorten their prompt; it says how many tokens that has."""
    return invalid(
        f"This model's maximum context length is {facts.context_length} tokens, and the prompt has {prompt_tokens}: "
        "it must leave room for at least one more. Please shorten it.",
        param,
        "context_length_exceeded",
    )


def seed_of(seed: int | None, choice: int) -> int | None:
    """The seed of choice number `choice`: consecutive ones, within int64."""
    return None if seed is None else (seed + choice + 2**63) % 2**64 - 2**63


def chat_logprobs(request: ChatOptions, facts: EngineFacts) -> int | None:
    """How many alternatives a chat request wants per token; None without logprobs."""
    if not given(request.logprobs, False):
        return None
    require(facts, Capability.LOGPROBS, "logprobs")
    return given(request.top_logprobs, 0)


def completion_logprobs(request: CompletionOptions, facts: EngineFacts) -> int | None:
    """The same for completions, where `logprobs` is the number. With echo the prompt's are reported too."""
    if not isinstance(request.logprobs, int):
        return None
    require(facts, Capability.LOGPROBS, "logprobs")
    if given(request.echo, False):
        require(facts, Capability.PROMPT_LOGPROBS, "echo")
    return request.logprobs


def _logit_bias(request: GenerationOptions, facts: EngineFacts) -> dict[int, float]:
    bias = given(request.logit_bias, {})
    if bias:
        require(facts, Capability.LOGIT_BIAS, "logit_bias")
    return {_biased_token(key, facts): value for key, value in bias.items()}


def _biased_token(key: str, facts: EngineFacts) -> int:
    token = int(key) if key.isascii() and key.isdigit() and len(key) < 20 else -1
    if not 0 <= token < facts.vocabulary_size:
        shown = key if len(key) <= 40 and key.isprintable() else "a key"
        known = f"the token ids of this model are 0 to {facts.vocabulary_size - 1}"
        raise invalid(f"Invalid value for 'logit_bias': {shown} is no token id; {known}.", "logit_bias")
    return token


def _stop_token_ids(request: GenerationOptions, facts: EngineFacts) -> frozenset[int]:
    ids = given(request.stop_token_ids, [])
    check_vocabulary(ids, facts, "stop_token_ids")
    return frozenset(ids)


def check_vocabulary(ids: list[int], facts: EngineFacts, param: str) -> None:
    """Refuse ids that are no tokens of this model."""
    if ids and (max(ids) >= facts.vocabulary_size or min(ids) < 0):
        wrong = max(ids) if max(ids) >= facts.vocabulary_size else min(ids)
        known = f"the token ids of this model are 0 to {facts.vocabulary_size - 1}"
        raise invalid(f"Invalid value for '{param}': {wrong} is no token id; {known}.", param)
