"""Request fields where they are read: null is the default, and what this server does not do is refused by name."""

from typing import Any, Final, TypeVar

from msgspec import UNSET, UnsetType

from schemas.dialect import NEUTRAL
from schemas.openai.chat import ChatOptions
from schemas.openai.errors import ServingError, invalid
from schemas.openai.options import GenerationOptions
from worker.engines.base import Capability, EngineFacts

T = TypeVar("T")


def given(value: T | None | UnsetType, default: T) -> T:
    """The value of a field, or the default for one that is absent or null."""
    return default if value is None or isinstance(value, UnsetType) else value


_NEVER: Final[dict[str, tuple[Any, ...]]] = {
    "audio": (),
    "cache_salt": (),
    "chat_template": (),
    "detokenize": (True,),
    "early_stopping": (False,),
    "function_call": NEUTRAL["function_call"],
    "functions": NEUTRAL["functions"],
    "length_penalty": (1.0,),
    "lora_request": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": NEUTRAL["modalities"],
    "moderation": (),
    "prompt_ignore_length": (0,),
    "return_context_logits": (False,),
    "suffix": NEUTRAL["suffix"],
    "thinking_token_budget": (),
    "top_p_min": (0.0,),
    "use_beam_search": (False,),
    "verbosity": NEUTRAL["verbosity"],
    "web_search_options": (),
}
"""Fields that would change the answer in ways few engines can, and the values that ask for what happens anyway (null does)."""

_NEVER_IN_CHAT: Final = _NEVER | {"echo": (False,)}
"""Completions echo their prompt; a conversation is no text to echo."""


def refuse_unsupported(request: GenerationOptions, facts: EngineFacts) -> None:
    """Refuse, by name, the first field that neither the server nor the engine can honour."""
    refused = _NEVER_IN_CHAT if isinstance(request, ChatOptions) else _NEVER
    for name, neutral in refused.items():
        value = UNSET if name in facts.extensions else getattr(request, name, UNSET)
        if value is not UNSET and value is not None and value not in neutral:
            raise unsupported(name)


def unsupported(name: str, why: str = "") -> ServingError:
    """The 400 for a field that is understood and cannot be honoured."""
    return invalid(f"'{name}' is not supported by this server{why and f': {why}'}.", name, "unsupported_parameter")


def require(facts: EngineFacts, capability: Capability, name: str) -> None:
    """Refuse a field whose capability the engine does not declare."""
    if capability not in facts.capabilities:
        message = f"'{name}' is not supported by the engine '{facts.engine}' (it has no {capability.value})."
        raise invalid(message, name, "unsupported_parameter")
