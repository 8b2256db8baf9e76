"""Which request fields a kind of worker knows. What it does not know never reaches it.

A stock worker refuses unknown keys with 400 (trtllm-wire.md 1.2), so a field outside its dialect is dropped when it cannot change
the answer, and refused by name when it would. A worker that does not identify itself is stock. Source: trtllm-wire.md 9.1 to 9.3.

Stock workers changed over time; each of their dialects says what it knows, `STOCK` is the newest (trtllm-wire.md 1.2, timeline):

    since       what                                                                         dialect before
    1.3.0rc25   `conversation_id` leaves `disaggregated_params` (#17618), `resolved_thinking`   stock-2026-07
                enters (#17305)
    1.3.0rc22   prompt ids in base64 on request (#15698), `conversation_params` (#15452)        stock-2026-06
"""

import math
import re
from typing import Any, Final

from msgspec import UNSET, Struct, structs

from schemas.codec import AnyChatView, AnyCompletionView
from schemas.openai.chat import CHAT_VIEWS, ChatCompletion, ChatView
from schemas.openai.completions import CompletionView
from schemas.openai.errors import invalid
from schemas.openai.options import StreamOptions
from schemas.tool_choice import settle_choice

HARMLESS: Final = frozenset(
    {
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "prediction",
        "user",
        "conversation_params",
    }
)
"""Fields that cannot change the words of an answer: dropped for a worker that does not know them."""

NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "parallel_tool_calls": (True,),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "suffix": ("",),
}
"""Values of other fields that ask for what happens anyway: dropped too. Null and false always are."""

_STOCK_SHARED: Final = frozenset(
    {
        "model",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
        "n",
        "best_of",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "user",
        "use_beam_search",
        "top_k",
        "top_p_min",
        "min_p",
        "repetition_penalty",
        "length_penalty",
        "early_stopping",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "min_tokens",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "truncate_prompt_tokens",
        "thinking_token_budget",
        "prompt_ignore_length",
        "lora_request",
        "response_format",
        "disaggregated_params",
        "conversation_params",
        "priority",
        "add_special_tokens",
    }
)
_STOCK_CHAT: Final = _STOCK_SHARED | {
    "messages",
    "prompt_token_ids",
    "prompt_token_ids_b64",
    "logprobs",
    "top_logprobs",
    "max_completion_tokens",
    "tools",
    "tool_choice",
    "reasoning_effort",
    "thinking",
    "echo",
    "add_generation_prompt",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "media_io_kwargs",
    "cache_salt",
    "agent_hierarchy",
    "mm_processor_kwargs",
}
_STOCK_COMPLETION: Final = _STOCK_SHARED | {
    "prompt",
    "echo",
    "logprobs",
    "max_tokens",
    "return_context_logits",
    "detokenize",
}


class Dialect(Struct, frozen=True):
    """What a kind of worker understands: the fields it does not know, per endpoint and in `disaggregated_params`.

    `deferred`: it takes deferred frames. `stock`: it is a `trtllm-serve`. `conversation_in_params`: it looks for the conversation's
    id in `disaggregated_params`.
    """

    name: str
    unknown_chat: frozenset[str]
    unknown_completion: frozenset[str]
    unknown_params: frozenset[str] = frozenset()
    deferred: bool = False
    stock: bool = False
    conversation_in_params: bool = False

    @property
    def takes_ids_b64(self) -> bool:
        """Whether prompt ids may be asked for, and given, in base64."""
        return "return_prompt_token_ids_b64" not in self.unknown_params

    def fit_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """The hand-off without the keys this worker would refuse. None of them changes the state that is handed over."""
        if self.unknown_params.isdisjoint(params):
            return params
        return {name: value for name, value in params.items() if name not in self.unknown_params}

    def fit(self, view: AnyChatView | AnyCompletionView) -> None:
        """Take from the view what this worker does not know; raises a 400 naming the field when it would change the answer."""
        chat = "messages" in view.__struct_fields__
        for name in self.unknown_chat if chat else self.unknown_completion:
            value = getattr(view, name)
            if value is not UNSET:
                _drop(view, name, value)


def _drop(view: AnyChatView | AnyCompletionView, name: str, value: Any) -> None:
    neutral = value is None or value is False or name in HARMLESS or value in NEUTRAL.get(name, ())
    if not neutral:
        raise invalid(f"'{name}' is not supported by the workers of this model.", name, "unsupported_parameter")
    setattr(view, name, UNSET)


def unify(view: AnyChatView | AnyCompletionView) -> None:
    """Settle what has two names or a default that kinds of workers disagree about. Once per request, before any leg.

    Chat's `max_tokens` becomes `max_completion_tokens`; a choice of allowed tools leaves only those and its mode, for no worker has
    to know it; a stock worker's `include_usage` defaults to true, OpenAI's to false.
    `include_obfuscation` asks for padding that nobody here adds, and a stock worker refuses it.
    """
    if isinstance(view.stream_options, StreamOptions):
        view.stream_options.include_obfuscation = UNSET
        if view.stream_options.include_usage in (UNSET, None):
            view.stream_options.include_usage = False
    if isinstance(view, CHAT_VIEWS):
        _unify_limits(view)
        settle_choice(view)


def _unify_limits(view: AnyChatView) -> None:
    if view.max_completion_tokens in (UNSET, None) and view.max_tokens not in (UNSET, None):
        view.max_completion_tokens = view.max_tokens
    view.max_tokens = UNSET


def for_stock(reply: ChatCompletion) -> None:
    """Leave out of a reply what a stock orchestrator refuses: it forbids unknown keys in what it reads too (trtllm-wire.md 9.4)."""
    for choice in reply.choices:
        choice.message.refusal = UNSET
        if choice.logprobs is not None:
            choice.logprobs.refusal = UNSET


PACKRELAY: Final = Dialect("packrelay", frozenset(), frozenset(), deferred=True)
STOCK: Final = Dialect(
    "stock",
    frozenset(ChatView.__struct_fields__) - _STOCK_CHAT,
    frozenset(CompletionView.__struct_fields__) - _STOCK_COMPLETION,
    unknown_params=frozenset({"conversation_id"}),
    stock=True,
)
STOCK_2026_07: Final = structs.replace(
    STOCK, name="stock-2026-07", unknown_params=frozenset({"resolved_thinking"}), conversation_in_params=True
)
STOCK_2026_06: Final = structs.replace(
    STOCK_2026_07,
    name="stock-2026-06",
    unknown_chat=STOCK.unknown_chat | {"conversation_params", "prompt_token_ids_b64"},
    unknown_completion=STOCK.unknown_completion | {"conversation_params"},
    unknown_params=frozenset({"resolved_thinking", "return_prompt_token_ids_b64"}),
)
STOCK_DIALECTS: Final = {dialect.name: dialect for dialect in (STOCK, STOCK_2026_07, STOCK_2026_06)}
"""By name, newest first."""

_VERSION: Final = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:rc(\d{1,9}))?")
_BEFORE: Final = (((1, 3, 0, 22), STOCK_2026_06), ((1, 3, 0, 25), STOCK_2026_07))
"""The first version that does not speak the dialect any more, oldest first. Release candidates were cut from a moving trunk, so
one at a boundary may be on either side of it: the operator can say it instead."""


def stock_dialect(version: str | None) -> Dialect:
    """The dialect of a stock worker by what it says at `/version`; the newest if it says nothing that can be read."""
    found = _VERSION.match(version or "")
    if found is None:
        return STOCK
    major, minor, patch, candidate = found.groups()
    said = (int(major), int(minor), int(patch), int(candidate) if candidate else math.inf)
    return next((dialect for first, dialect in _BEFORE if said < first), STOCK)
