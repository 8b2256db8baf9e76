"""What a worker says while it generates: `Started`, then `Delta`s, then exactly one of `Done` and `Failed`.

The transport-free form of a stream: the worker's HTTP side and the gateway's gRPC link make the same bytes of it
(`schemas/openai/stream.py`). Events are tagged by a short string; a reader skips and counts tags it does not know.

So what is added later must be an event that a stream can do without. If it ever is one that ends a stream, it carries `last: true`:
older readers then fail that stream at once (`codec.read_events`) instead of waiting for an end that has been.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from schemas.disagg import DisaggregatedParams
from schemas.openai.chat import ToolCallDelta
from schemas.openai.errors import ErrorKind
from schemas.openai.usage import Usage


class Alternative(Struct, kw_only=True, frozen=True):
    """A token that could have stood at a position: its bytes (perhaps part of a character) and natural log probability."""

    bytes: bytes
    logprob: float


class TokenLogprob(Struct, kw_only=True, frozen=True):
    """The token at a position. `logprob` is null only for the first token of an echoed prompt; `top` is the most likely first."""

    bytes: bytes
    logprob: float | None
    top: list[Alternative] = []


class Started(Struct, tag="started", kw_only=True):
    """The request was accepted and its prompt read. `created` is in Unix seconds; counts are over all prompts of the request."""

    created: int
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Delta(Struct, tag="delta", kw_only=True):
    """New output of choice `index`: text, reasoning text, tool call pieces, log probabilities; any of them may be missing.

    `tokens` is how many generated tokens this delta accounts for. `finish_reason` is set in the choice's last delta, with
    `stop_reason` if a stop string or a stop token id ended it.
    """

    index: int = 0
    text: str = ""
    reasoning: str = ""
    tokens: int = 0
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    finish_reason: str | UnsetType = UNSET
    stop_reason: str | int | UnsetType = UNSET


class Handoff(Struct, kw_only=True):
    """A context leg's result beside its text: what the generation leg needs to go on."""

    params: DisaggregatedParams
    prompt_token_ids: list[int]


class Done(Struct, tag="done", kw_only=True):
    """The request is complete: every choice had its finish reason. `handoff` only from a context leg, one per request."""

    usage: Usage
    handoff: Handoff | UnsetType = UNSET


class Failed(Struct, tag="failed", kw_only=True):
    """The request ended without a complete answer. Fields as in the OpenAI error object; `kind` gives the HTTP status."""

    kind: ErrorKind
    message: str
    param: str | None = None
    code: str | None = None


Event = Started | Delta | Done | Failed


def merge(first: Delta, second: Delta) -> Delta:
    """Two consecutive deltas of one choice as one: for a reader that is slower than the writer. Nothing is lost or reordered."""
    return Delta(
        index=first.index,
        text=first.text + second.text,
        reasoning=first.reasoning + second.reasoning,
        tokens=first.tokens + second.tokens,
        tool_calls=_joined(first.tool_calls, second.tool_calls),
        logprobs=_joined(first.logprobs, second.logprobs),
        finish_reason=second.finish_reason,
        stop_reason=second.stop_reason,
    )


def _joined(first: "list[Any] | UnsetType", second: "list[Any] | UnsetType") -> "list[Any] | UnsetType":
    if first is UNSET:
        return second
    return first if second is UNSET else [*first, *second]
