"""The prompt of a chat request, as token ids: rendered and tokenised here, or handed over by a context leg that did so."""

from typing import Any, Final

from msgspec import to_builtins

from schemas.codec import decode_token_ids
from schemas.openai.chat import ChatCompletionRequest
from schemas.openai.errors import invalid
from schemas.openai.options import GenerationOptions
from worker.conversation import conversation
from worker.engines.base import Engine, EngineFacts
from worker.fields import given, unsupported
from worker.markup import THINK_OPEN
from worker.prompt import ChatTemplate
from worker.sampling import check_vocabulary, context_exceeded
from worker.tools import ToolUse

_TAIL: Final = 16
"""How many of a prompt's last tokens are looked at for a `<think>` that it leaves open."""


def chat_prompt(
    request: ChatCompletionRequest, tools: ToolUse, template: ChatTemplate, engine: Engine, facts: EngineFacts
) -> list[int]:
    """The prompt's tokens. The messages are checked also when the ids come from a context leg."""
    messages = conversation(request.messages, tools.offer, native="tools" in template.variables)
    tokens = _handed_over(request)
    if tokens is None:
        text = template.render(messages, _variables(request, tools, template, facts))
        tokens = tokenized(text, request, engine, facts, "messages", add_special=False)
        tokens = truncated(tokens, request)
    if not tokens:
        raise invalid("The messages make an empty prompt.", "messages")
    check_vocabulary(tokens, facts, "prompt_token_ids")
    return tokens


def _handed_over(request: ChatCompletionRequest) -> list[int] | None:
    """The prompt as a context leg read it, if this is the leg after one."""
    if isinstance(request.prompt_token_ids_b64, str):
        return decode_token_ids(request.prompt_token_ids_b64)
    return given(request.prompt_token_ids, None)


def _variables(
    request: ChatCompletionRequest, tools: ToolUse, template: ChatTemplate, facts: EngineFacts
) -> dict[str, Any]:
    """What the template finds beside the messages. Any: the client's own template variables are among it."""
    return {
        **_thinking(request),
        **given(request.chat_template_kwargs, {}),
        "tools": to_builtins(tools.offer) or None,
        "documents": _documents(request, template),
        "add_generation_prompt": given(request.add_generation_prompt, True),
        "bos_token": facts.bos,
        "eos_token": facts.eos,
    }


def _thinking(request: ChatCompletionRequest) -> dict[str, Any]:
    """Reasoning fields under the names templates know. Any: values of three types."""
    variables: dict[str, Any] = {}
    effort = given(request.reasoning_effort, "")
    if effort:
        variables["reasoning_effort"] = effort
    wanted = {"enabled": True, "disabled": False}.get(str(given(request.thinking, {}).get("type")))
    if wanted is None and effort == "none":
        wanted = False
    if wanted is not None:
        variables |= {"enable_thinking": wanted, "thinking": wanted}
    return variables


def _documents(request: ChatCompletionRequest, template: ChatTemplate) -> list[dict[str, Any]] | None:
    """Documents go to templates that have a place for them. Any: their form is the template's business."""
    documents = given(request.documents, [])
    if documents and "documents" not in template.variables:
        raise unsupported("documents", "the model's chat template has no place for them")
    return documents or None


def tokenized(
    text: str, request: GenerationOptions, engine: Engine, facts: EngineFacts, param: str, *, add_special: bool
) -> list[int]:
    """A prompt's text as tokens, all of them. One that is far too long is refused before, if the prompt is not to be cut.

    `add_special` is what the request means when it does not say.
    """
    if given(request.truncate_prompt_tokens, None) is None:
        fewest = engine.fewest_tokens(text, facts.context_length)
        if fewest >= facts.context_length:
            raise context_exceeded(f"at least {fewest}", facts, param)
    return engine.tokenize(text, special=True, add_special=given(request.add_special_tokens, add_special))


def truncated(tokens: list[int], request: GenerationOptions) -> list[int]:
    """The last `truncate_prompt_tokens` tokens of a prompt."""
    kept = given(request.truncate_prompt_tokens, None)
    return tokens if kept is None else tokens[-kept:]


def leaves_thinking_open(prompt: list[int], engine: Engine) -> bool:
    """Whether a prompt ends inside a thought, so that the answer begins there."""
    tail = b"".join(engine.token_bytes(token) for token in prompt[-_TAIL:])
    return tail.rstrip().endswith(THINK_OPEN.encode())
