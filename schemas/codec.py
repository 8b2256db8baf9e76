"""Encoders and decoders, built once, and the one failure that every way to be malformed becomes.

    DecodeFailure   bytes that are not the message they should be: truncated, trailing, nested too deep, wrong types, bad UTF-8

A frame is one msgpack value; as an HTTP body it is tagged by `X-TRTLLM-Msgpack: 1` under the content type `application/json`
(trtllm-wire.md 1.1). The tag alone decides how a body is read.
"""

import binascii
import re
from array import array
from base64 import b64decode, b64encode
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from schemas.disagg import OpaqueState
from schemas.events import Delta, Done, Event, Failed, Started
from schemas.nulls import LenientDecoder
from schemas.openai.chat import (
    ChatCompletionRequest,
    ChatMessage,
    ChatOptions,
    ChatView,
    DeferredChatRequest,
    TolerantChatView,
    Tool,
)
from schemas.openai.completions import CompletionRequest, CompletionView, TolerantCompletionView
from schemas.openai.errors import ErrorKind, ServingError
from schemas.openai.options import TokenId

FRAMES_VERSION: Final = 1

MSGPACK_HEADER: Final = "x-trtllm-msgpack"
MSGPACK_HEADER_VALUE: Final = "1"
REQUEST_ID_HEADER: Final = "x-packrelay-request-id"
DEADLINE_HEADER: Final = "x-packrelay-deadline-ms"
DISAGG_AUTH_HEADER: Final = "x-trtllm-disagg-auth"
WORKER_AUTH_HEADER: Final = "x-packrelay-auth"
FRAME_TYPE: Final = "application/json"
MSGPACK_TYPE: Final = "application/msgpack"
SSE_TYPE: Final = "text/event-stream"

MAX_BODY_BYTES: Final = 64 << 20
"""The largest request body or frame that is read, in bytes."""
MAX_REPLY_BYTES: Final = 256 << 20
"""The largest reply that is read whole, in bytes."""

T = TypeVar("T")


class DecodeFailure(ServingError):
    """The bytes are not the message they should be. Becomes a 400 with the field's name, or 413 when too large."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(ErrorKind.INVALID, message, param=param, code=code)


MALFORMED = (msgspec.DecodeError, RecursionError, UnicodeError, OverflowError, ValueError, TypeError, MemoryError)
"""Everything msgspec has been seen to raise for bytes that somebody else wrote."""

_PATH = re.compile(r" - at (?:`key` in )?`\$([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]+)`")
_UNKNOWN = re.compile(r"contains unknown field `(.*)`", re.DOTALL)
"""Clients may name a field anything, also nothing."""


def guarded(decode: Any, data: Any) -> Any:
    """`decode(data)`, with every way to be malformed turned into DecodeFailure."""
    try:
        return decode(data)
    except MALFORMED as error:
        raise failure_of(error) from error


def failure_of(error: Exception, within: str = "") -> DecodeFailure:
    """The DecodeFailure for what a decoder raised: a sentence, and the field it is about. `within`: the part that was decoded."""
    param, sentence = within, f"the body could not be parsed: {_reason(error)}"
    if isinstance(error, msgspec.ValidationError):
        param, sentence = _located(str(error), within)
    if not param:
        return DecodeFailure(f"{sentence[0].upper()}{sentence[1:]}.")
    return DecodeFailure(f"Invalid value for '{param}': {sentence}.", param)


def _located(text: str, within: str) -> tuple[str, str]:
    """The field a validation error is about, and the sentence without the path."""
    path = _PATH.search(text)
    param = f"{within}{path.group(1)}" if path else within
    named = _MISSING.search(text) or _UNKNOWN.search(text)
    if named:
        param = f"{param}.{named.group(1)}"
    return param.lstrip("."), _PATH.sub("", text)


def _no_extensions(code: int, _data: memoryview) -> Any:
    """Called by a decoder for msgpack's extension types: no frame has them."""
    raise ValueError(f"Extension type {code} is not part of a frame")


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeError):
        return "it is not valid UTF-8"
    text = str(error)
    return text if len(text) <= 200 and text.isprintable() else "it is malformed"


# --- requests: the gateway's views, the worker's readings ---

_chat_view = msgspec.json.Decoder(ChatView)
_tolerant_chat_view = msgspec.json.Decoder(TolerantChatView)
_completion_view = msgspec.json.Decoder(CompletionView)
_tolerant_completion_view = msgspec.json.Decoder(TolerantCompletionView)
_fields = msgspec.json.Decoder(dict[str, Raw])

_chat_json = LenientDecoder(msgspec.json.Decoder(ChatCompletionRequest))
_chat_frame = LenientDecoder(msgspec.msgpack.Decoder(DeferredChatRequest, ext_hook=_no_extensions))
_completion_json = LenientDecoder(msgspec.json.Decoder(CompletionRequest))
_completion_frame = LenientDecoder(msgspec.msgpack.Decoder(CompletionRequest, ext_hook=_no_extensions))

_messages_json = LenientDecoder(msgspec.json.Decoder(list[ChatMessage]))
_tools_json = msgspec.json.Decoder(list[Tool] | None)
_any_messages = msgspec.json.Decoder(list[dict[str, Any]])
_any_tools = msgspec.json.Decoder(list[dict[str, Any]] | None)
_any = msgspec.json.Decoder()

AnyChatView = ChatView | TolerantChatView
AnyCompletionView = CompletionView | TolerantCompletionView


def read_chat_view(body: bytes) -> tuple[AnyChatView, list[str]]:
    """The gateway's reading of a chat body, and the names of top-level fields nobody knows (usually none).

    The view forbids unknown fields; only when that fails is the body read once more for their names.
    """
    try:
        return _chat_view.decode(body), []
    except MALFORMED as error:
        unknown = _unknown_fields(body, ChatView, error)
    view: TolerantChatView = guarded(_tolerant_chat_view.decode, body)
    return view, unknown


def read_completion_view(body: bytes) -> tuple[AnyCompletionView, list[str]]:
    """As `read_chat_view`, for a completions body."""
    try:
        return _completion_view.decode(body), []
    except MALFORMED as error:
        unknown = _unknown_fields(body, CompletionView, error)
    view: TolerantCompletionView = guarded(_tolerant_completion_view.decode, body)
    return view, unknown


def _unknown_fields(body: bytes, view: type[Struct], error: Exception) -> list[str]:
    if not _UNKNOWN.search(str(error)):
        raise failure_of(error) from error
    known = view.__struct_fields__
    return [name for name in guarded(_fields.decode, body) if name not in known]


def read_chat_json(body: bytes) -> ChatCompletionRequest:
    """A worker's reading of an untagged chat body."""
    request: ChatCompletionRequest = guarded(_chat_json.decode, body)
    return request


def read_chat_frame(frame: bytes) -> ChatCompletionRequest:
    """A worker's reading of a tagged chat body, in either form."""
    request: DeferredChatRequest = guarded(_chat_frame.decode, frame)
    return undefer(request)


def undefer(request: DeferredChatRequest) -> ChatCompletionRequest:
    """The request with `messages` and `tools` as values, parsed here if they came as the client's JSON."""
    messages, tools = request.messages, request.tools
    if isinstance(messages, bytes):
        messages = _part(_messages_json, messages, "messages")
    if isinstance(tools, bytes):
        tools = _part(_tools_json, tools, "tools")
    if not messages:
        raise DecodeFailure("Invalid value for 'messages': Expected `array` of length >= 1.", "messages")
    options = {name: getattr(request, name) for name in ChatOptions.__struct_fields__}
    return ChatCompletionRequest(messages=messages, tools=tools, **options)


def read_completion_json(body: bytes) -> CompletionRequest:
    """A worker's reading of an untagged completions body; `prompt` is checked by `prompt_of`."""
    request: CompletionRequest = guarded(_completion_json.decode, body)
    return request


def read_completion_frame(frame: bytes) -> CompletionRequest:
    """A worker's reading of a tagged completions body."""
    request: CompletionRequest = guarded(_completion_frame.decode, frame)
    return request


def prompt_of(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts of a request as a list, each text or token ids. Null is the empty text."""
    prompt = request.prompt
    if prompt is None:
        return [""]
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise DecodeFailure("Invalid value for 'prompt': expected text, token ids, or a list of either.", "prompt")
    first = prompt[0]
    if isinstance(first, str):
        texts: list[str | list[int]] = _prompt(prompt, list[str])
        return texts
    if isinstance(first, list):
        batches: list[str | list[int]] = _prompt(prompt, list[list[TokenId]])
        return batches
    return [_prompt(prompt, list[TokenId])]


def _prompt(prompt: list[Any], type_: Any) -> Any:
    try:
        return msgspec.convert(prompt, type_)
    except msgspec.ValidationError as error:
        raise DecodeFailure(f"Invalid value for 'prompt': {_PATH.sub('', str(error))}.", "prompt") from error


def _part(decoder: Any, data: Any, name: str) -> Any:
    """A part of a body that is parsed apart: its failure names it."""
    try:
        return decoder.decode(data)
    except MALFORMED as error:
        raise failure_of(error, name) from error


# --- frames ---

_frame_encoder = msgspec.msgpack.Encoder()
_json_encoder = msgspec.json.Encoder()


def encode_frame(value: Any) -> bytes:
    """Any Struct (or map) as one msgpack value. What it cannot hold (integers from 2^64, lone surrogates) is a DecodeFailure."""
    try:
        return _frame_encoder.encode(value)
    except (OverflowError, UnicodeError, RecursionError, TypeError, ValueError) as error:
        raise DecodeFailure(_unencodable(error)) from error


def encode_json(value: Any) -> bytes:
    """Any Struct as JSON. Floats must be finite before they come here: msgspec writes the others as null."""
    return _json_encoder.encode(value)


def _unencodable(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return "The body holds an integer of more than 64 bits."
    if isinstance(error, RecursionError):
        return "The body is nested too deeply."
    return "The body holds text that is not valid Unicode."


def plain_form(view: AnyChatView | AnyCompletionView) -> int:
    """Make the view ready to be encoded as a plain frame: the client's JSON parts become msgpack. Once per request, not per leg.

    Returns how many prompts there are: 1 for chat, and a list of one prompt is unwrapped (trtllm-wire.md 1.4).
    """
    if isinstance(view, CompletionView | TolerantCompletionView):
        return _plain_prompt(view)
    view.messages = _as_msgpack(_any_messages, view.messages, "messages")
    if view.tools is not UNSET:
        view.tools = _as_msgpack(_any_tools, view.tools, "tools")
    return 1


def _plain_prompt(view: AnyCompletionView) -> int:
    prompt = _part(_any, view.prompt, "prompt")
    count = len(prompt) if _lists_prompts(prompt) else 1
    if count == 1 and _lists_prompts(prompt) and not _lists_prompts(prompt[0]):
        prompt = prompt[0]
    view.prompt = _packed(prompt, "prompt")
    return count


def _lists_prompts(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)


def deferred_form(view: AnyChatView) -> None:
    """Make the view ready to be encoded as a deferred frame: `messages` and `tools` travel as the client's bytes.

    Completions have no deferred form.
    """
    view.messages = _as_bin(view.messages, "messages")
    if view.tools is not UNSET:
        null = len(memoryview(view.tools)) == 4 and bytes(view.tools) == b"null"
        view.tools = Raw(b"\xc0") if null else _as_bin(view.tools, "tools")


def _as_msgpack(decoder: Any, raw: Raw, name: str) -> Raw:
    value = _part(decoder, raw, name)
    if value == [] and name == "messages":
        raise DecodeFailure("Invalid value for 'messages': Expected `array` of length >= 1.", "messages")
    return _packed(value, name)


def _packed(value: Any, name: str) -> Raw:
    """A value as msgpack that stands in a frame as it is."""
    try:
        return Raw(_frame_encoder.encode(value))
    except (OverflowError, UnicodeError, RecursionError) as error:
        raise DecodeFailure(_unencodable(error), name) from error


def _as_bin(raw: Raw, name: str) -> Any:
    data = memoryview(raw)
    if data[0] != ord("["):  # A Raw is never empty.
        raise DecodeFailure(f"Invalid value for '{name}': Expected `array`.", name)
    return data


# --- events ---

_event_batch = msgspec.msgpack.Decoder(list[tuple[int, Event]])
_event_batch_raw = msgspec.msgpack.Decoder(list[tuple[int, Raw]])
_event = LenientDecoder(msgspec.msgpack.Decoder(Event))
_tag = msgspec.msgpack.Decoder(dict[str, Any])

EVENT_TAGS: Final = frozenset(type_.__struct_config__.tag for type_ in (Started, Delta, Done, Failed))


def read_events(batch: bytes) -> tuple[list[tuple[int, Event]], int]:
    """A batch of `[stream, event]`, and how many events were skipped because their tag is not known here.

    A batch that fails typed decoding is decoded again event by event, so that a newer peer's event costs only itself. One that says
    it is the `last` of its stream stands for an end that is not known here: it is read as `Failed`, so that nobody waits for
    another. An event of a known tag that does not decode fails the batch.
    """
    try:
        return _event_batch.decode(batch), 0
    except MALFORMED:
        pairs: list[tuple[int, Raw]] = guarded(_event_batch_raw.decode, batch)
    events: list[tuple[int, Event]] = []
    unknown = 0
    for stream, raw in pairs:
        said = guarded(_tag.decode, raw)
        if _is_known(said.get("type")):
            events.append((stream, guarded(_event.decode, raw)))
            continue
        unknown += 1
        if said.get("last") is True:
            events.append((stream, _unknown_end()))
    return events, unknown


def _unknown_end() -> Failed:
    message = "The worker ended its answer in a way that is not known here."
    return Failed(kind=ErrorKind.BAD_WORKER, message=message, code="unknown_end")


def _is_known(tag: object) -> bool:
    """Whether a peer's tag is one of ours; it may be any value, hashable or not."""
    return isinstance(tag, str) and tag in EVENT_TAGS


# --- replies and small parts ---


def json_decoder(type_: type[T]) -> LenientDecoder[T]:
    """A JSON decoder for a reply; build it once per module."""
    return LenientDecoder(msgspec.json.Decoder(type_))


def msgpack_decoder(type_: type[T]) -> LenientDecoder[T]:
    """A msgpack decoder for a reply; build it once per module."""
    return LenientDecoder(msgspec.msgpack.Decoder(type_))


def encode_opaque(state: OpaqueState) -> str:
    """Our workers' opaque state as it stands in `encoded_opaque_state`."""
    return b64encode(_frame_encoder.encode(state)).decode("ascii")


_opaque = LenientDecoder(msgspec.msgpack.Decoder(OpaqueState))


def decode_opaque(text: str | None | UnsetType) -> OpaqueState:
    """The other way; anything else than what `encode_opaque` wrote is a DecodeFailure."""
    name = "disaggregated_params.encoded_opaque_state"
    try:
        data = b64decode(text or "", validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise DecodeFailure("The hand-off state is not base64.", name) from error
    state: OpaqueState = _part(_opaque, data, name)
    return state


def encode_token_ids(ids: list[int]) -> str:
    """Token ids as base64 of little-endian int32, the form `prompt_token_ids_b64` has (trtllm-wire.md 1.4)."""
    return b64encode(array("i", ids).tobytes()).decode("ascii")


def decode_token_ids(text: str) -> list[int]:
    """The other way; DecodeFailure for what is not that form."""
    try:
        return array("i", b64decode(text, validate=True)).tolist()
    except (binascii.Error, ValueError) as error:
        raise DecodeFailure("Invalid value for 'prompt_token_ids_b64'.", "prompt_token_ids_b64") from error
