"""Completions: the request in its two readings, the reply, and the chunks of a stream.

Source: OpenAI `CreateCompletionRequest` and its reply; TensorRT-LLM's extensions from trtllm-wire.md 9.2 and 9.4.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from schemas.disagg import DisaggregatedParams
from schemas.openai.logprobs import CompletionLogprobs
from schemas.openai.options import GenerationOptions, TokenId
from schemas.openai.usage import Usage

Prompt = str | list[str] | list[TokenId] | list[list[TokenId]]


class CompletionOptions(GenerationOptions, kw_only=True):
    """Every top-level field of a completions request but `prompt`.

    `max_tokens` defaults to 16 (OpenAI's default for this endpoint). `logprobs` (0 to 20) is how many of the most likely tokens
    to report per position. `suffix` is known so that it can be refused by name.
    """

    echo: bool | None | UnsetType = UNSET
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None | UnsetType = UNSET
    suffix: str | None | UnsetType = UNSET
    return_context_logits: bool | None | UnsetType = UNSET
    detokenize: bool | None | UnsetType = UNSET


class CompletionRequest(CompletionOptions, kw_only=True):
    """A completions request as a worker reads it, and the public schema.

    `prompt` is text, a list of texts, token ids, or a list of lists of token ids. A list's type is told by its first element
    (msgspec has no union of lists), so it is read in a second step: `codec.prompt_of`.
    """

    prompt: Any


class CompletionView(CompletionOptions, kw_only=True, forbid_unknown_fields=True):
    """A completions request as the gateway reads it: `prompt` stays the client's JSON."""

    prompt: Raw


class TolerantCompletionView(CompletionOptions, kw_only=True):
    """CompletionView for a body with top-level fields nobody knows."""

    prompt: Raw


class CompletionChoice(Struct, kw_only=True):
    """One completion. Its index is `prompt number * n + choice number`."""

    index: int = 0
    text: str = ""
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None | UnsetType = UNSET
    disaggregated_params: DisaggregatedParams | None | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    """A whole completions reply, and every SSE record of a completions stream (`choices` is empty in the usage chunk)."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None | UnsetType = UNSET
    prompt_token_ids: list[int] | None | UnsetType = UNSET
