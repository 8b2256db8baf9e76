"""What the fields of one request say about each other. Checked by both sides of the inner hop: by the gateway before anything is
sent, so that no worker sees a request that contradicts itself, and by a worker for whoever asks it directly.

Source: OpenAI API reference, the fields' descriptions; TensorRT-LLM's own checks (trtllm-wire.md 9.1 to 9.4).
"""

import re
from collections.abc import Collection
from typing import Any, Final

from msgspec import Raw, UnsetType

from schemas.openai.chat import AllowedToolsChoice, ChatOptions, NamedToolChoice, ToolChoice
from schemas.openai.errors import invalid
from schemas.openai.options import GenerationOptions, JsonSchemaFormat, ResponseFormat

COMPLETION_MAX_TOKENS: Final = 16
"""OpenAI's default of `max_tokens` on the completions endpoint; chat's is all that the context leaves."""

_NO_TOOLS: Final = re.compile(rb"null|\[\s*\]")


def check_together(request: GenerationOptions) -> None:
    """Raise the 400 for the first pair of fields that do not go together; it names the one to change."""
    _check_streaming(request)
    _check_candidates(request)
    _check_limits(request)
    if isinstance(request.response_format, ResponseFormat) and request.response_format.type in _FORMS:
        form_of(request.response_format)
    if isinstance(request, ChatOptions):
        _check_logprobs(request)
        _check_tools(request)


def explicit_limit(request: GenerationOptions) -> int | None:
    """The most tokens that may be generated as far as the client says, None if it does not.

    Chat's `max_completion_tokens` wins over `max_tokens`, its older name; completions have a default, which `min_tokens` may raise.
    """
    older = request.max_tokens if isinstance(request.max_tokens, int) else None
    if not isinstance(request, ChatOptions):
        return max(COMPLETION_MAX_TOKENS, request.min_tokens or 0) if older is None else older
    newer = request.max_completion_tokens
    return newer if isinstance(newer, int) else older


def candidates_of(request: GenerationOptions) -> int:
    """How many sequences each prompt runs: `best_of`, or `n` without it. A best_of of 0 is none."""
    return request.best_of or request.n or 1


def form_of(format_: ResponseFormat) -> Any:
    """What a response format holds beside its type: a schema, a regular expression or a grammar. Raises the 400 if it is missing.

    Any: a schema is the client's own JSON.
    """
    field = _FORMS[format_.type]
    held = getattr(format_, field)
    if isinstance(held, JsonSchemaFormat):
        field, held = f"{field}.schema", held.schema
    # False is a schema; an empty text is neither an expression nor a grammar.
    if held is None or held == "" or isinstance(held, UnsetType):
        raise invalid(
            f"'response_format' of type {format_.type} needs 'response_format.{field}'.", f"response_format.{field}"
        )
    return held


_FORMS: Final = {"json_schema": "json_schema", "regex": "regex", "ebnf": "ebnf", "structural_tag": "format"}
"""The field that a type of response format cannot do without."""


def check_choice(choice: ToolChoice | None | UnsetType, offered: Collection[str]) -> None:
    """Raise the 400 for a choice of a function that is not among those offered, given by their names."""
    for name in _chosen(choice):
        if name not in offered:
            raise invalid(f"'tool_choice' names the function '{name[:256]}', which is not in 'tools'.", "tool_choice")


def _chosen(choice: ToolChoice | None | UnsetType) -> list[str]:
    if isinstance(choice, NamedToolChoice):
        return [choice.function.name]
    if isinstance(choice, AllowedToolsChoice):
        return [tool.function.name for tool in choice.allowed_tools.tools]
    return []


# --- the pairs ---


def _check_streaming(request: GenerationOptions) -> None:
    if request.stream is not True and request.stream_options:
        raise invalid("'stream_options' is only allowed when 'stream' is true.", "stream_options")


def _check_candidates(request: GenerationOptions) -> None:
    if not request.best_of:
        return
    n, candidates = request.n or 1, request.best_of
    if candidates < n:
        raise invalid(f"'best_of' ({candidates}) must not be less than 'n' ({n}).", "best_of")
    if request.stream is True and candidates > n:
        raise invalid("'best_of' cannot be streamed: which answers are the best is known at their end.", "best_of")


def _check_limits(request: GenerationOptions) -> None:
    limit, least = explicit_limit(request), request.min_tokens or 0
    if limit == 0 and isinstance(request, ChatOptions):
        raise invalid("Invalid value for 'max_tokens': Expected `int` >= 1.", "max_tokens")
    if limit is not None and least > limit:
        raise invalid(f"'min_tokens' ({least}) is more than the most tokens allowed ({limit}).", "min_tokens")


def _check_logprobs(request: ChatOptions) -> None:
    if request.top_logprobs and request.logprobs is not True:
        raise invalid("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")


def _check_tools(request: ChatOptions) -> None:
    if request.tool_choice and request.tool_choice != "none" and not _offers_tools(getattr(request, "tools", None)):
        raise invalid("'tool_choice' is only allowed when 'tools' are given.", "tool_choice")


def _offers_tools(tools: Any) -> bool:
    """Whether there are tools: in the client's JSON, which is not parsed for that, or as values. Any: either, or nothing."""
    if isinstance(tools, Raw):
        return _NO_TOOLS.fullmatch(memoryview(tools)) is None
    return bool(tools)
