"""Token counts. Source: OpenAI `CompletionUsage`; the defaults are the stock worker's `UsageInfo` (trtllm-wire.md 9.4)."""

from msgspec import UNSET, Struct, UnsetType


class PromptTokensDetails(Struct, kw_only=True):
    """Where prompt tokens came from: `cached_tokens` were found in the worker's KV cache (a handed-off prefix is not cached)."""

    cached_tokens: int = 0


class Usage(Struct, kw_only=True):
    """Tokens of one request over all its choices. `total_tokens` is the sum of the two others."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None | UnsetType = UNSET


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> Usage:
    """The counts as one Usage, with its sum."""
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
    )
