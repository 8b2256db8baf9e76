"""Replies and chunks as a stock worker writes them: whole replies keep nulls, chunks drop them."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

from tests.stock.model import Sequence, Token, detokenize
from tests.stock.protocol import ChatRequest, CompletionRequest, Generation

LOGPROB = -0.25
DONE = b"data: [DONE]\n\n"

Json = dict[str, Any]


@dataclass(frozen=True)
class Head:
    """What every record of one reply has in common."""

    id: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def record(self, object_: str, choices: list[Json], **more: Any) -> Json:
        """A reply or a chunk."""
        return {
            "id": self.id,
            "object": object_,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **more,
        }


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Json:
    """The counts; the details are null when nothing was cached."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens} if cached_tokens else None,
    }


def sse(record: Json, *, first_of_chat: bool = False) -> bytes:
    """One record of a stream. The first of a chat stream has a space before its blank line."""
    return f"data: {json.dumps(record, ensure_ascii=False)}{' ' if first_of_chat else ''}\n\n".encode()


def chunk(record: Json) -> Json:
    """The record without its null keys, at every depth."""
    return {key: _without_nulls(value) for key, value in record.items() if value is not None}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return chunk(value)
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


# --- whole replies ---


def chat_choice(request: ChatRequest, index: int, made: Sequence, params: Json | None) -> Json:
    """A choice of a chat reply."""
    message: Json = {
        "role": "assistant",
        "content": made.text(),
        "reasoning_content": None,
        "reasoning": None,
        "tool_calls": [],
    }
    if made.call is not None:
        message["content"] = ""
        call = {"name": made.call, "arguments": made.text()}
        message["tool_calls"] = [{"id": f"chatcmpl-tool-{index}", "type": "function", "function": call}]
    return {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(made.tokens, request.top_logprobs or 0) if request.logprobs else None,
        "finish_reason": finish_of(made),
        "stop_reason": made.stop_reason,
        "mm_embedding_handle": None,
        "disaggregated_params": params,
        "avg_decoded_tokens_per_iter": None,
    }


def finish_of(made: Sequence) -> str:
    """`tool_calls` only for a call whose arguments are complete."""
    return "tool_calls" if made.call is not None and made.finish_reason == "stop" else made.finish_reason


def chat_logprobs(tokens: list[Token], top: int) -> Json:
    """Chat's shape of log probabilities."""
    return {
        "content": [
            _chat_logprob(token.text) | {"top_logprobs": [_chat_logprob(token.text)] * min(top, 1)} for token in tokens
        ]
    }


def _chat_logprob(text: str) -> Json:
    return {"token": text, "logprob": LOGPROB, "bytes": list(text.encode())}


def completion_choice(request: CompletionRequest, index: int, made: Sequence, params: Json | None) -> Json:
    """A choice of a completions reply."""
    echoed = detokenize(made.prompt) if request.echo else []
    return {
        "index": index,
        "text": "".join(echoed) + made.text(),
        "token_ids": None if request.detokenize else [token.id for token in made.tokens],
        "logprobs": None if request.logprobs is None else completion_logprobs(echoed, made.tokens),
        "context_logits": None,
        "finish_reason": made.finish_reason,
        "stop_reason": made.stop_reason,
        "disaggregated_params": params,
        "avg_decoded_tokens_per_iter": None,
    }


def completion_logprobs(echoed: list[str], tokens: list[Token]) -> Json:
    """Completions' shape: the first token of an echoed prompt has none."""
    texts = [*echoed, *(token.text for token in tokens)]
    offsets = [len("".join(texts[:count])) for count in range(len(texts))]
    values = [None if echoed and not count else LOGPROB for count in range(len(texts))]
    tops = [None if value is None else {text: value} for text, value in zip(texts, values, strict=True)]
    return {"text_offset": offsets, "token_logprobs": values, "tokens": texts, "top_logprobs": tops}


def whole(request: Generation, head: Head, choices: list[Json], counts: Json, **ids: Any) -> Json:
    """A whole reply of either endpoint."""
    if isinstance(request, ChatRequest):
        return head.record(
            "chat.completion",
            choices,
            usage=counts,
            prompt_token_ids=ids.get("prompt_token_ids"),
            prompt_token_ids_b64=ids.get("prompt_token_ids_b64"),
        )
    return head.record("text_completion", choices, usage=counts, prompt_token_ids=ids.get("prompt_token_ids"))


# --- chunks ---


def chat_role(index: int) -> Json:
    """The first chunk of a chat choice."""
    return {"index": index, "delta": {"role": "assistant", "content": ""}}


def chat_step(request: ChatRequest, index: int, made: Sequence, at: int) -> Json:
    """The chunk of one token of a chat choice."""
    token, last = made.tokens[at], at == len(made.tokens) - 1
    return {
        "index": index,
        "delta": {"content": token.text} if made.call is None else {"tool_calls": [_call_delta(made, at)]},
        "logprobs": chat_logprobs([token], request.top_logprobs or 0) if request.logprobs else None,
        "finish_reason": finish_of(made) if last else None,
        "stop_reason": made.stop_reason if last else None,
    }


def _call_delta(made: Sequence, at: int) -> Json:
    function = {"arguments": made.tokens[at].text}
    if at:
        return {"index": 0, "function": function}
    return {"id": "chatcmpl-tool-0", "type": "function", "index": 0, "function": {"name": made.call, **function}}


def completion_step(request: CompletionRequest, index: int, made: Sequence, at: int) -> Json:
    """The chunk of one token of a completion; an echoed prompt comes with the first."""
    token, last = made.tokens[at], at == len(made.tokens) - 1
    echoed = detokenize(made.prompt) if request.echo and not at else []
    return {
        "index": index,
        "text": "".join(echoed) + token.text,
        "logprobs": None if request.logprobs is None else completion_logprobs(echoed, [token]),
        "finish_reason": made.finish_reason if last else None,
        "stop_reason": made.stop_reason if last else None,
    }
