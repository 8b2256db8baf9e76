"""Which request fields a kind of worker knows. What it does not know never reaches it.

A stock worker refuses unknown keys with 400 (trtllm-wire.md 1.2), so a field outside its dialect is dropped when it cannot change
the answer, and refused by name when it would. A worker that does not identify itself is stock. Source: trtllm-wire.md 9.1 to 9.3.
"""

from typing import Any, Final

from msgspec import UNSET, Struct

from schemas.codec import AnyChatView, AnyCompletionView
from schemas.openai.chat import ChatCompletion, ChatView
from schemas.openai.completions import CompletionView
from schemas.openai.errors import invalid
from schemas.openai.options import StreamOptions

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
    "best_of",
    "prompt",
    "echo",
    "logprobs",
    "max_tokens",
    "return_context_logits",
    "detokenize",
}


class Dialect(Struct, frozen=True):
    """What a kind of worker understands: the fields it does not know, per endpoint, and whether it takes deferred frames."""

    name: str
    unknown_chat: frozenset[str]
    unknown_completion: frozenset[str]
    deferred: bool = False

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

    Chat's `max_tokens` becomes `max_completion_tokens`; a stock worker's `include_usage` defaults to true, OpenAI's to false.
    `include_obfuscation` asks for padding that nobody here adds, and a stock worker refuses it.
    """
    if isinstance(view.stream_options, StreamOptions):
        view.stream_options.include_obfuscation = UNSET
        if view.stream_options.include_usage in (UNSET, None):
            view.stream_options.include_usage = False
    if "messages" in view.__struct_fields__:
        _unify_limits(view)


def _unify_limits(view: Any) -> None:
    if view.max_completion_tokens in (UNSET, None) and view.max_tokens not in (UNSET, None):
        if view.max_tokens == 0:
            raise invalid("Invalid value for 'max_tokens': Expected `int` >= 1.", "max_tokens")
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
)
