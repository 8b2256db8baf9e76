"""Events to chunks, events to whole replies: the one place where either is made.

The worker's HTTP side and the gateway's gRPC link use it alike, so a client sees the same bytes over both.
"""

from collections.abc import Iterable
from math import isfinite
from typing import Any, Final, TypeVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Encoder

from schemas.events import Delta, Done, Event, Failed, Started, TokenLogprob
from schemas.openai.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    FunctionCall,
    ToolCall,
    ToolCallDelta,
)
from schemas.openai.completions import Completion, CompletionChoice
from schemas.openai.errors import OPENAI_TYPE, ErrorBody, ErrorKind, ErrorObject, ServingError
from schemas.openai.logprobs import FLOOR, ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TopLogprob
from schemas.openai.options import GenerationOptions, StreamOptions
from schemas.openai.usage import Usage, usage_of

DONE: Final = b"data: [DONE]\n\n"

_encoder = Encoder()

Reply = TypeVar("Reply", ChatCompletion, Completion)


class StreamHead(Struct, frozen=True, kw_only=True):
    """What is the same in every record of a stream: the reply's id and model, and what the client wants to hear of usage."""

    id: str
    model: str
    include_usage: bool = False
    continuous_usage: bool = False


def stream_head(request_id: str, request: GenerationOptions, model: str) -> StreamHead:
    """The head for a request: ids are `chatcmpl-` or `cmpl-` and our request id."""
    options = request.stream_options if isinstance(request.stream_options, StreamOptions) else StreamOptions()
    prefix = "chatcmpl-" if "messages" in request.__struct_fields__ else "cmpl-"
    return StreamHead(
        id=prefix + request_id,
        model=model,
        include_usage=options.include_usage is True,
        continuous_usage=options.continuous_usage_stats is True,
    )


def sse(value: Any) -> bytes:
    """One SSE record holding a value as JSON."""
    return b"data: %b\n\n" % _encoder.encode(value)


def error_of(event: Failed) -> ServingError:
    """The error a Failed event stands for."""
    return ServingError(event.kind, event.message, param=event.param, code=event.code)


def error_record(error: ServingError) -> bytes:
    """The record that ends a broken stream; no `[DONE]` follows it."""
    return sse(error.body())


def failed_record(event: Failed) -> bytes:
    """The record that ends a stream whose worker said Failed."""
    body = ErrorObject(message=event.message, type=OPENAI_TYPE[event.kind], param=event.param, code=event.code)
    return sse(ErrorBody(error=body))


_PLACE: Final = "text"


def _is_plain(delta: Delta) -> bool:
    """Whether a delta is text and nothing else."""
    return (
        delta.text != ""
        and delta.finish_reason is UNSET
        and delta.logprobs is UNSET
        and delta.tool_calls is UNSET
        and not delta.reasoning
        and delta.stop_reason is UNSET
    )


class _Chunks:
    """Makes the records of one stream from its events, in order. Subclasses know how a delta looks."""

    def __init__(self, head: StreamHead) -> None:
        self.head = head
        self.created = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._frames: dict[int, tuple[bytes, bytes]] = {}

    def records(self, event: Event) -> bytes:
        """The SSE bytes of one event; empty if there is nothing to say."""
        if isinstance(event, Delta):
            self._completion_tokens += event.tokens
            frame = self._frames.get(event.index)
            if frame is not None and _is_plain(event):
                return b"%b%b%b" % (frame[0], _encoder.encode(event.text), frame[1])
            record = sse(self._chunk(event))
            if frame is None and not self.head.continuous_usage:
                self._frames[event.index] = self._frame(event.index)
            return record
        if isinstance(event, Started):
            self.created = event.created
            self._prompt_tokens, self._cached_tokens = event.prompt_tokens, event.cached_tokens
            return b""
        if isinstance(event, Done):
            return self._end(event.usage)
        return failed_record(event)

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """What stands around the text in the records of a choice that has begun: nearly all of them differ in nothing else."""
        before, _, after = sse(self._chunk(Delta(index=index, text=_PLACE))).rpartition(_encoder.encode(_PLACE))
        return before, after

    def _end(self, usage: Usage) -> bytes:
        return sse(self._usage_chunk(usage)) + DONE if self.head.include_usage else DONE

    def _running_usage(self) -> Usage | None | UnsetType:
        """The `usage` of a chunk that is not the last: the counts so far if asked for, null if only the end was asked for."""
        if self.head.continuous_usage:
            return usage_of(self._prompt_tokens, self._completion_tokens, self._cached_tokens)
        return None if self.head.include_usage else UNSET

    def _chunk(self, delta: Delta) -> Struct:
        raise NotImplementedError

    def _usage_chunk(self, usage: Usage) -> Struct:
        raise NotImplementedError


class ChatChunks(_Chunks):
    """The records of a chat stream. `role` goes into the first delta of each choice."""

    def __init__(self, head: StreamHead) -> None:
        super().__init__(head)
        self._begun: set[int] = set()

    def _chunk(self, delta: Delta) -> ChatCompletionChunk:
        choice = ChatChunkChoice(
            index=delta.index,
            delta=self._delta(delta),
            logprobs=ChatLogprobs(content=chat_logprobs(delta.logprobs)) if delta.logprobs else UNSET,
            finish_reason=delta.finish_reason or None,
            stop_reason=delta.stop_reason,
        )
        return self._record([choice], self._running_usage())

    def _delta(self, delta: Delta) -> ChatDelta:
        made = ChatDelta()
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            made.role = "assistant"
            made.content = "" if delta.tool_calls is UNSET and not delta.reasoning else None
        if delta.text:
            made.content = delta.text
        if delta.reasoning:
            made.reasoning_content = delta.reasoning
        made.tool_calls = delta.tool_calls
        return made

    def _usage_chunk(self, usage: Usage) -> ChatCompletionChunk:
        return self._record([], usage)

    def _record(self, choices: list[ChatChunkChoice], usage: Usage | None | UnsetType) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self.head.id, created=self.created, model=self.head.model, choices=choices, usage=usage
        )


class CompletionChunks(_Chunks):
    """The records of a completions stream."""

    def __init__(self, head: StreamHead) -> None:
        super().__init__(head)
        self._offsets: dict[int, int] = {}

    def _chunk(self, delta: Delta) -> Completion:
        logprobs = None
        if delta.logprobs:
            logprobs = completion_logprobs(delta.logprobs, self._offsets.get(delta.index, 0))
            self._offsets[delta.index] = self._offsets.get(delta.index, 0) + code_points(delta.logprobs)
        choice = CompletionChoice(
            index=delta.index,
            text=delta.text,
            logprobs=logprobs,
            finish_reason=delta.finish_reason or None,
            stop_reason=delta.stop_reason,
        )
        return self._record([choice], self._running_usage())

    def _usage_chunk(self, usage: Usage) -> Completion:
        return self._record([], usage)

    def _record(self, choices: list[CompletionChoice], usage: Usage | None | UnsetType) -> Completion:
        return Completion(id=self.head.id, created=self.created, model=self.head.model, choices=choices, usage=usage)


# --- log probabilities ---


def token_text(data: bytes) -> str:
    r"""A token's text; bytes that are part of a character are written `bytes:\xf0\x9f`, as OpenAI does."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def finite(logprob: float) -> float:
    """The value, or the floor for what is not a number or infinite (and for anything below the floor)."""
    return max(FLOOR, logprob) if isfinite(logprob) else FLOOR


def chat_logprobs(entries: Iterable[TokenLogprob]) -> list[ChatTokenLogprob]:
    """Chat's shape of log probabilities."""
    return [
        ChatTokenLogprob(
            token=token_text(entry.bytes),
            logprob=FLOOR if entry.logprob is None else finite(entry.logprob),
            bytes=list(entry.bytes),
            top_logprobs=[
                TopLogprob(token=token_text(top.bytes), logprob=finite(top.logprob), bytes=list(top.bytes))
                for top in entry.top
            ],
        )
        for entry in entries
    ]


def completion_logprobs(entries: list[TokenLogprob], offset: int) -> CompletionLogprobs:
    """Completions' shape; `offset` is the code points of the choice before these tokens."""
    made = CompletionLogprobs()
    for entry in entries:
        made.text_offset.append(offset)
        made.tokens.append(token_text(entry.bytes))
        made.token_logprobs.append(None if entry.logprob is None else finite(entry.logprob))
        tops = {token_text(top.bytes): finite(top.logprob) for top in entry.top}
        made.top_logprobs.append(None if entry.logprob is None else tops)
        offset += code_points([entry])
    return made


def code_points(entries: Iterable[TokenLogprob]) -> int:
    """How many characters begin in these tokens: bytes that do not continue one."""
    return sum(byte & 0xC0 != 0x80 for entry in entries for byte in entry.bytes)


# --- whole replies ---


class _Choice:
    """One choice being put together."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.logprobs: list[TokenLogprob] | None = None
        self.tool_calls: dict[int, ToolCall] = {}
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None

    def add(self, delta: Delta) -> None:
        self.text.append(delta.text)
        self.reasoning.append(delta.reasoning)
        if not isinstance(delta.logprobs, UnsetType):
            self.logprobs = [*(self.logprobs or []), *delta.logprobs]
        for piece in delta.tool_calls or []:
            self._add_call(piece)
        self.finish_reason = delta.finish_reason or self.finish_reason
        if not isinstance(delta.stop_reason, UnsetType):
            self.stop_reason = delta.stop_reason

    def _add_call(self, piece: ToolCallDelta) -> None:
        call = self.tool_calls.setdefault(piece.index, ToolCall(function=FunctionCall(name="")))
        call.id = piece.id or call.id
        if piece.function and call.function:
            call.function.name += piece.function.name or ""
            call.function.arguments += piece.function.arguments or ""


class Fold:
    """Puts the events of one request together into a whole reply."""

    def __init__(self, head: StreamHead) -> None:
        self.head = head
        self.created = 0
        self.choices: dict[int, _Choice] = {}
        self.done: Done | None = None

    def add(self, event: Event) -> None:
        """Take the next event. A Failed event is raised as the error it stands for."""
        if isinstance(event, Delta):
            self.choices.setdefault(event.index, _Choice()).add(event)
        elif isinstance(event, Started):
            self.created = event.created
        elif isinstance(event, Done):
            self.done = event
        else:
            raise error_of(event)

    def chat(self) -> ChatCompletion:
        """The reply to a chat request; raises if the events ended without a terminal one."""
        done = self._complete()
        reply = ChatCompletion(
            id=self.head.id,
            created=self.created,
            model=self.head.model,
            choices=[_chat_choice(index, self.choices[index]) for index in sorted(self.choices)],
            usage=done.usage,
        )
        return _with_handoff(reply, done)

    def completion(self) -> Completion:
        """The reply to a completions request; raises if the events ended without a terminal one."""
        done = self._complete()
        reply = Completion(
            id=self.head.id,
            created=self.created,
            model=self.head.model,
            choices=[_completion_choice(index, self.choices[index]) for index in sorted(self.choices)],
            usage=done.usage,
        )
        return _with_handoff(reply, done)

    def _complete(self) -> Done:
        if self.done is None:
            raise ServingError(ErrorKind.BAD_WORKER, "The worker stopped before the answer was complete.")
        return self.done


def _with_handoff(reply: Reply, done: Done) -> Reply:
    if done.handoff is not UNSET:
        reply.prompt_token_ids = done.handoff.prompt_token_ids
        for choice in reply.choices:
            choice.disaggregated_params = done.handoff.params
    return reply


def _chat_choice(index: int, made: _Choice) -> ChatChoice:
    calls = [made.tool_calls[number] for number in sorted(made.tool_calls)]
    text, reasoning = "".join(made.text), "".join(made.reasoning)
    message = AssistantMessage(
        content=None if calls and not text else text,
        reasoning_content=reasoning or UNSET,
        tool_calls=calls or UNSET,
    )
    return ChatChoice(
        index=index,
        message=message,
        logprobs=None if made.logprobs is None else ChatLogprobs(content=chat_logprobs(made.logprobs)),
        finish_reason=made.finish_reason,
        stop_reason=made.stop_reason,
    )


def _completion_choice(index: int, made: _Choice) -> CompletionChoice:
    return CompletionChoice(
        index=index,
        text="".join(made.text),
        logprobs=None if made.logprobs is None else completion_logprobs(made.logprobs, 0),
        finish_reason=made.finish_reason,
        stop_reason=made.stop_reason,
    )
