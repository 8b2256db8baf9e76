"""A request becomes a plan: which sequences to run, and how each is read. Everything refused is refused here, by name, before
anything starts.

Synchronous and free of I/O; rendering and tokenising a long prompt take time, so call it off the event loop for large bodies.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from schemas.codec import prompt_of
from schemas.events import Delta
from schemas.openai.chat import ChatCompletionRequest
from schemas.openai.completions import CompletionRequest
from schemas.openai.errors import invalid
from schemas.openai.options import GenerationOptions
from schemas.openai.rules import candidates_of, check_together, explicit_limit
from worker.chat_prompt import chat_prompt, leaves_thinking_open, tokenized, truncated
from worker.constraint import constraint_of
from worker.engines.base import Capability, Constraint, Engine, EngineFacts, Sampling
from worker.fields import given, refuse_unsupported, require, unsupported
from worker.markup import THINK_OPEN, MarkupOptions
from worker.output import OutputOptions
from worker.prompt import chat_template
from worker.sampling import (
    chat_logprobs,
    check_vocabulary,
    completion_logprobs,
    limit_for,
    sampling_of,
    seed_of,
)
from worker.stops import compile_stops
from worker.tools import ToolUse, tool_use

MAX_SEQUENCES: Final = 128
"""The most sequences one request may run: prompts times n (or best_of)."""


class SequencePlan(Struct, frozen=True, kw_only=True):
    """One sequence. `index` is the choice it becomes: prompt number * candidates + its number among them.

    `settled` is the whole answer when nothing has to be generated (max_tokens 0): the engine is not asked then.
    """

    index: int
    prompt: list[int]
    sampling: Sampling
    output: OutputOptions
    settled: Delta | None = None


class Plan(Struct, frozen=True, kw_only=True):
    """What a request runs. Each of `prompts` has `candidates` sequences, of which the `n` best become its choices.

    Unless best_of asks for more, candidates equals n, and every sequence is the choice of its index.
    """

    prompts: list[list[int]]
    sequences: list[SequencePlan]
    n: int
    candidates: int

    @property
    def prompt_tokens(self) -> int:
        """The tokens of all prompts, each counted once however many choices it has."""
        return sum(len(prompt) for prompt in self.prompts)

    def best(self, scores: list[float]) -> list[int]:
        """The sequences (positions in `sequences`) that become choice 0, 1, …: of each prompt's candidates the `n` of the highest
        scores, best first. `scores` are the readers' `mean_logprob`.
        """
        if self.candidates == self.n:
            return list(range(len(self.sequences)))
        chosen: list[int] = []
        for first in range(0, len(self.sequences), self.candidates):
            group = range(first, first + self.candidates)
            chosen += sorted(group, key=lambda position: -scores[position])[: self.n]
        return chosen


class _Prompt(Struct, frozen=True):
    """A prompt's tokens, and its text where it is echoed."""

    tokens: list[int]
    text: str | None = None


# --- chat ---


def plan_chat(request: ChatCompletionRequest, engine: Engine, facts: EngineFacts) -> Plan:
    """The plan of a chat request; raises ServingError (400) for what cannot be done.

    `prompt_token_ids` (or its base64 form) from a context leg replaces rendering; the messages are checked all the same.
    """
    candidates = _candidates(request, facts)
    tools = tool_use(request)
    template = chat_template(facts.chat_template)
    prompt = chat_prompt(request, tools, template, engine, facts)
    constraint = _chat_constraint(request, tools, facts)
    limit = limit_for(len(prompt), explicit_limit(request), facts, "messages")
    logprobs = chat_logprobs(request, facts)
    sampling = sampling_of(request, facts, max_tokens=limit, logprobs=logprobs, constraint=constraint)
    markup = _markup(prompt, tools, constraint, engine, facts)
    output = replace(_output(request, engine, logprobs), markup=markup)
    return _plan([_Prompt(prompt)], *_ranked(request, sampling, output), n=given(request.n, 1), candidates=candidates)


def _chat_constraint(request: ChatCompletionRequest, tools: ToolUse, facts: EngineFacts) -> Constraint | None:
    if tools.forced:
        require(facts, Capability.JSON, "tool_choice")
        return tools.constraint
    constraint = constraint_of(request.response_format, facts)
    if constraint is None or not tools.offer:
        return constraint
    if constraint.kind not in ("json_object", "json_schema"):
        raise unsupported("response_format", "together with tools it is JSON, or 'tool_choice' is 'none'")
    return tools.beside(constraint)


def _markup(
    prompt: list[int], tools: ToolUse, constraint: Constraint | None, engine: Engine, facts: EngineFacts
) -> MarkupOptions | None:
    """The tags to read. A forced form leaves no room for any."""
    if tools.forced:
        return MarkupOptions(forced=True)
    if constraint is not None and tools.offer:
        return MarkupOptions(forced=True, names=tools.names)
    reasoning = constraint is None and THINK_OPEN in facts.chat_template
    if not (reasoning or tools.offer):
        return None
    return MarkupOptions(
        reasoning=reasoning,
        thinking=reasoning and leaves_thinking_open(prompt, engine),
        tools=bool(tools.offer),
        single_call=tools.single_call,
    )


# --- completions ---


def plan_completion(request: CompletionRequest, engine: Engine, facts: EngineFacts) -> Plan:
    """The plan of a completions request; raises ServingError (400) for what cannot be done."""
    candidates = _candidates(request, facts)
    texts = prompt_of(request)
    _check_sequences(len(texts), candidates)
    limit = explicit_limit(request)
    prompts: list[_Prompt] = []
    limits: list[int] = []
    for text in texts:
        prompts.append(_completion_prompt(text, request, engine, facts))
        # If this one is too long, the others need not be tokenised any more.
        limits.append(limit_for(len(prompts[-1].tokens), limit, facts, "prompt"))
    logprobs = completion_logprobs(request, facts)
    constraint = constraint_of(request.response_format, facts)
    sampling = sampling_of(request, facts, max_tokens=max(limits), logprobs=logprobs, constraint=constraint)
    output = replace(_output(request, engine, logprobs), chosen_in_top=True)
    if given(request.echo, False) and logprobs is not None:
        sampling = replace(sampling, prompt_logprobs=logprobs)
    sampling, output = _ranked(request, sampling, output)
    return _plan(prompts, sampling, output, n=given(request.n, 1), candidates=candidates, limits=limits)


def _completion_prompt(
    prompt: str | list[int], request: CompletionRequest, engine: Engine, facts: EngineFacts
) -> _Prompt:
    """The prompt's tokens, cut as asked; an empty one becomes the start token."""
    if isinstance(prompt, str):
        tokens = tokenized(prompt, request, engine, facts, "prompt", add_special=True)
    else:
        check_vocabulary(prompt, facts, "prompt")
        tokens = prompt
    kept = truncated(tokens, request)
    text: str | None = None
    if given(request.echo, False):
        whole = isinstance(prompt, str) and len(kept) == len(tokens)
        text = prompt if whole and isinstance(prompt, str) else _text(kept, engine)
    return _Prompt(kept or _start(engine, facts), text)


def _text(tokens: list[int], engine: Engine) -> str:
    """The text of a prompt that came as ids, without the token that the engine itself puts in front of texts."""
    added = engine.tokenize("", special=False, add_special=True)
    shown = tokens[len(added) :] if added and tokens[: len(added)] == added else tokens
    return b"".join(engine.token_bytes(token) for token in shown).decode("utf-8", "replace")


def _start(engine: Engine, facts: EngineFacts) -> list[int]:
    """One token to begin with: the model's begin token, or its end token for models that have none."""
    tokens = engine.tokenize(facts.bos or facts.eos, special=True, add_special=False)
    if not tokens:
        raise invalid("The prompt is empty, and this model has no token to begin with.", "prompt")
    return tokens[:1]


# --- both ---


def _candidates(request: GenerationOptions, facts: EngineFacts) -> int:
    """How many sequences each prompt runs, once nothing is left to refuse in the options alone."""
    refuse_unsupported(request, facts)
    check_together(request)
    candidates = candidates_of(request)
    if candidates > given(request.n, 1):
        require(facts, Capability.LOGPROBS, "best_of")
    return candidates


def _ranked(request: GenerationOptions, sampling: Sampling, output: OutputOptions) -> tuple[Sampling, OutputOptions]:
    """The same with what choosing the best needs, if there is something to choose: log probabilities, shown or not."""
    if candidates_of(request) == given(request.n, 1) or sampling.logprobs is not None:
        return sampling, output
    return replace(sampling, logprobs=0), replace(output, ranked=True)


def _check_sequences(prompts: int, candidates: int) -> None:
    if prompts * candidates > MAX_SEQUENCES:
        counts = f"{prompts} prompts with {candidates} sequences each are {prompts * candidates}"
        raise invalid(f"A request may run at most {MAX_SEQUENCES} sequences; {counts}.", "prompt")


def _output(request: GenerationOptions, engine: Engine, logprobs: int | None) -> OutputOptions:
    stop = given(request.stop, [])
    return OutputOptions(
        token_bytes=engine.token_bytes,
        stops=compile_stops([stop] if isinstance(stop, str) else stop),
        include_stop=given(request.include_stop_str_in_output, False),
        min_tokens=given(request.min_tokens, 0),
        show_special=not given(request.skip_special_tokens, True),
        logprobs=logprobs is not None,
    )


def _plan(
    prompts: list[_Prompt],
    sampling: Sampling,
    output: OutputOptions,
    *,
    n: int,
    candidates: int,
    limits: list[int] | None = None,
) -> Plan:
    sequences = []
    for number, prompt in enumerate(prompts):
        read = replace(output, echo=prompt.text)
        limited = _limited(sampling, limits[number]) if limits else sampling
        for candidate in range(candidates):
            seeded = replace(limited, seed=seed_of(sampling.seed, candidate))
            sequences.append(_sequence(number * candidates + candidate, prompt, seeded, read))
    return Plan(prompts=[prompt.tokens for prompt in prompts], sequences=sequences, n=n, candidates=candidates)


def _limited(sampling: Sampling, limit: int) -> Sampling:
    return replace(sampling, max_tokens=limit, min_tokens=min(sampling.min_tokens, limit))


def _sequence(index: int, prompt: _Prompt, sampling: Sampling, output: OutputOptions) -> SequencePlan:
    """One sequence. Asked for no tokens it is settled here, or generates one nobody sees, for the prompt's log probabilities."""
    settled = None
    if sampling.max_tokens == 0:
        sampling = replace(sampling, max_tokens=1, min_tokens=0)
        output = replace(output, prompt_only=True)
        if sampling.prompt_logprobs is None:
            settled = Delta(index=index, text=prompt.text or "", finish_reason="length")
    return SequencePlan(index=index, prompt=prompt.tokens, sampling=sampling, output=output, settled=settled)
