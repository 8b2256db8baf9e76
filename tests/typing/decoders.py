"""What the decoders and encoders are to a type checker. Never run: mypy reads it."""

from typing import assert_type

from schemas.codec import (
    AnyChatView,
    AnyCompletionView,
    decode_opaque,
    decode_token_ids,
    encode_frame,
    encode_json,
    encode_opaque,
    encode_token_ids,
    json_decoder,
    msgpack_decoder,
    plain_form,
    prompt_of,
    read_chat_frame,
    read_chat_json,
    read_chat_view,
    read_completion_frame,
    read_completion_json,
    read_completion_view,
    read_events,
)
from schemas.disagg import OpaqueState
from schemas.events import Event
from schemas.nulls import LenientDecoder
from schemas.openai.chat import ChatCompletion, ChatCompletionRequest, ChatView, TolerantChatView
from schemas.openai.completions import CompletionRequest, CompletionView, TolerantCompletionView
from schemas.server_info import ServerInfo


def requests(body: bytes) -> None:
    """A request's readings: the gateway's view with the unknown names, the worker's Struct."""
    assert_type(read_chat_view(body), tuple[ChatView | TolerantChatView, list[str]])
    assert_type(read_completion_view(body), tuple[CompletionView | TolerantCompletionView, list[str]])
    assert_type(read_chat_json(body), ChatCompletionRequest)
    assert_type(read_chat_frame(body), ChatCompletionRequest)
    assert_type(read_completion_json(body), CompletionRequest)
    assert_type(read_completion_frame(body), CompletionRequest)
    assert_type(prompt_of(read_completion_json(body)), list[str | list[int]])


def views(chat: AnyChatView, completion: AnyCompletionView) -> None:
    """The count of prompts is a number for either view."""
    assert_type(plain_form(chat), int)
    assert_type(plain_form(completion), int)


def replies(body: bytes) -> None:
    """A decoder for a reply knows what it decodes."""
    assert_type(json_decoder(ServerInfo), LenientDecoder[ServerInfo])
    assert_type(json_decoder(ServerInfo).decode(body), ServerInfo)
    assert_type(msgpack_decoder(ChatCompletion).decode(body), ChatCompletion)


def events(batch: bytes) -> None:
    """A batch is pairs of stream and event, and a count of what was skipped."""
    assert_type(read_events(batch), tuple[list[tuple[int, Event]], int])


def small_parts(state: OpaqueState, ids: list[int]) -> None:
    """What stands as text in a frame comes back as it was."""
    assert_type(encode_opaque(state), str)
    assert_type(decode_opaque(encode_opaque(state)), OpaqueState)
    assert_type(decode_token_ids(encode_token_ids(ids)), list[int])
    assert_type(encode_frame(state), bytes)
    assert_type(encode_json(state), bytes)
