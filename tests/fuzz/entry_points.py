"""What is done with bytes that somebody else wrote, one function per way in. Only DecodeFailure may come out of any of them."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from schemas import codec
from schemas.abort import AbortRequest
from schemas.codec import DecodeFailure
from schemas.openai.chat import ChatCompletion
from schemas.openai.completions import Completion

_abort = codec.msgpack_decoder(AbortRequest)
_chat_reply = codec.msgpack_decoder(ChatCompletion)
_completion_reply = codec.msgpack_decoder(Completion)


def http_body(data: bytes) -> None:
    """A client's body: read as the gateway's views, made into frames, and those read by a worker; and as a worker reads it itself.

    What the gateway passes on means to a worker what the client wrote: both forms are one request.
    """
    _all(data, _chat_crosses, _completion_crosses, codec.read_chat_json, codec.read_completion_json)


def tagged_body(data: bytes) -> None:
    """A body under the tag, as a worker reads it on either path."""
    _all(data, codec.read_chat_frame, _completion_frame)


def grpc_payload(data: bytes) -> None:
    """The payload of a frame of the channel: a batch of events, an abort, a whole reply, and the hand-off state within one."""
    _all(
        data,
        codec.read_events,
        _guarded(_abort),
        _guarded(_chat_reply),
        _guarded(_completion_reply),
        _opaque,
        _token_ids,
    )


ENTRY_POINTS: Final[dict[str, Callable[[bytes], None]]] = {
    "http_body": http_body,
    "tagged_body": tagged_body,
    "grpc_payload": grpc_payload,
}


def _all(data: bytes, *readers: Callable[[bytes], object]) -> None:
    """Every reader gets the bytes, whatever the others think of them."""
    for read in readers:
        with suppress(DecodeFailure):
            read(data)


def _chat_crosses(body: bytes) -> None:
    requests = []
    for form in (codec.plain_form, codec.deferred_form):
        view, _ = codec.read_chat_view(body)
        form(view)
        requests.append(codec.read_chat_frame(codec.encode_frame(view)))
    assert requests[0] == requests[1]


def _completion_crosses(body: bytes) -> None:
    view, _ = codec.read_completion_view(body)
    codec.plain_form(view)
    _completion_frame(codec.encode_frame(view))


def _completion_frame(frame: bytes) -> None:
    codec.prompt_of(codec.read_completion_frame(frame))


def _guarded(decoder: Any) -> Callable[[bytes], object]:
    return lambda data: codec.guarded(decoder.decode, data)


def _opaque(data: bytes) -> object:
    return codec.decode_opaque(data.decode("latin-1"))


def _token_ids(data: bytes) -> object:
    return codec.decode_token_ids(data.decode("latin-1"))
