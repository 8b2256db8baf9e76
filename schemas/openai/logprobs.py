"""Log probabilities of tokens, in the two shapes the API has.

Source: OpenAI `ChatCompletionTokenLogprob` and the completions reply's `logprobs`.

All values are finite: what the model rules out is -9999.0 (OpenAI's own floor), never -inf or NaN.
"""

from msgspec import Struct, UnsetType

FLOOR = -9999.0


class TopLogprob(Struct, kw_only=True):
    """One of the most likely tokens at a position: its text, natural log probability, and UTF-8 bytes (0 to 255 each)."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class ChatTokenLogprob(Struct, kw_only=True):
    """The token that was chosen, and the most likely ones at its position (as many as `top_logprobs` asked for)."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[TopLogprob] = []


class ChatLogprobs(Struct, kw_only=True):
    """Chat's shape: one entry per generated token."""

    content: list[ChatTokenLogprob] | None = None
    refusal: list[ChatTokenLogprob] | None | UnsetType = None


class CompletionLogprobs(Struct, kw_only=True):
    """Completions' shape: four lists of equal length.

    `text_offset` counts code points from the start of the choice's text. With `echo` the first token has no log probability:
    its `token_logprobs` and `top_logprobs` entries are null.
    """

    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []
