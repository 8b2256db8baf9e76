"""A whole reply turned back into the events it was made of, one delta a choice: the inverse of `stream.Fold`."""

import re

from msgspec import UNSET, UnsetType

from schemas.events import Alternative, Delta, Done, Event, Started, TokenLogprob
from schemas.openai.chat import ChatChoice, ChatCompletion, FunctionCallDelta, ToolCall, ToolCallDelta
from schemas.openai.completions import Completion, CompletionChoice
from schemas.openai.logprobs import ChatLogprobs, CompletionLogprobs
from schemas.openai.usage import Usage

_BYTES = re.compile(r"\\x([0-9a-f]{2})")


def events_of(reply: ChatCompletion | Completion) -> list[Event]:
    """Started, a delta per choice, Done."""
    usage = reply.usage if isinstance(reply.usage, Usage) else Usage()
    details = usage.prompt_tokens_details or None
    cached = details.cached_tokens if details else 0
    started = Started(created=reply.created, prompt_tokens=usage.prompt_tokens, cached_tokens=cached)
    if isinstance(reply, ChatCompletion):
        deltas = [_chat_delta(choice) for choice in reply.choices]
    else:
        deltas = [_completion_delta(choice) for choice in reply.choices]
    if deltas:
        deltas[0].tokens = usage.completion_tokens
    return [started, *deltas, Done(usage=usage)]


def _chat_delta(choice: ChatChoice) -> Delta:
    message = choice.message
    return Delta(
        index=choice.index,
        text=message.content or "",
        reasoning=message.reasoning_content or "",
        tool_calls=[_call(number, call) for number, call in enumerate(message.tool_calls or [])] or UNSET,
        logprobs=_chat_logprobs(choice.logprobs),
        finish_reason=choice.finish_reason or UNSET,
        stop_reason=UNSET if choice.stop_reason is None else choice.stop_reason,
    )


def _completion_delta(choice: CompletionChoice) -> Delta:
    return Delta(
        index=choice.index,
        text=choice.text,
        logprobs=_completion_logprobs(choice.logprobs),
        finish_reason=choice.finish_reason or UNSET,
        stop_reason=UNSET if choice.stop_reason is None else choice.stop_reason,
    )


def _call(number: int, call: ToolCall) -> ToolCallDelta:
    function = call.function
    return ToolCallDelta(
        index=number,
        id=call.id or UNSET,
        type=call.type,
        function=UNSET if function is UNSET else FunctionCallDelta(name=function.name, arguments=function.arguments),
    )


def _chat_logprobs(logprobs: ChatLogprobs | None) -> list[TokenLogprob] | UnsetType:
    if logprobs is None or logprobs.content is None:
        return UNSET
    return [
        TokenLogprob(
            bytes=_token_bytes(entry.token, entry.bytes),
            logprob=entry.logprob,
            top=[
                Alternative(bytes=_token_bytes(top.token, top.bytes), logprob=top.logprob) for top in entry.top_logprobs
            ],
        )
        for entry in logprobs.content
    ]


def _completion_logprobs(logprobs: CompletionLogprobs | None) -> list[TokenLogprob] | UnsetType:
    if logprobs is None:
        return UNSET
    return [
        TokenLogprob(
            bytes=_token_bytes(token, None),
            logprob=logprob,
            top=[Alternative(bytes=_token_bytes(text, None), logprob=value) for text, value in (top or {}).items()],
        )
        for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True)
    ]


def _token_bytes(text: str, data: list[int] | None) -> bytes:
    """A token's bytes: as given, or out of its text (`stream.token_text` backwards)."""
    if data is not None:
        return bytes(data)
    if text.startswith("bytes:\\x"):
        return bytes(int(byte, 16) for byte in _BYTES.findall(text))
    return text.encode("utf-8")
