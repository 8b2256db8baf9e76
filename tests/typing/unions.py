"""What the unions are to a type checker: closed, so that a match over one is known to be complete. Never run: mypy reads it."""

from typing import Literal, assert_never, assert_type

from msgspec import UnsetType

from schemas.events import Delta, Done, Event, Failed, Handoff, Started
from schemas.openai.chat import (
    AllowedToolsChoice,
    ChatCompletionRequest,
    ChatMessage,
    ContentPart,
    DeferredChatRequest,
    NamedToolChoice,
    Tool,
    ToolChoice,
)
from schemas.openai.errors import ErrorKind
from schemas.openai.options import StreamOptions


def an_event_is_one_of_four(event: Event) -> str:
    """A fifth event makes this a type error: whoever reads events hears of it."""
    match event:
        case Started():
            return assert_type(event.created, int).__str__()
        case Delta():
            return assert_type(event.text, str)
        case Done():
            assert_type(event.handoff, Handoff | UnsetType)
            return ""
        case Failed():
            return assert_type(event.kind, ErrorKind)
        case _:
            assert_never(event)


def a_tool_choice_is_a_word_or_a_name(choice: ToolChoice) -> None:
    """Either a mode, a function by name, or several of them."""
    assert_type(choice, Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolsChoice)


def an_option_has_three_states(request: ChatCompletionRequest) -> None:
    """Absent, null and a value are three types."""
    assert_type(request.seed, int | None | UnsetType)
    assert_type(request.stream_options, StreamOptions | None | UnsetType)
    assert_type(request.messages, list[ChatMessage])
    assert_type(request.messages[0].content, str | list[ContentPart] | None | UnsetType)


def a_deferred_request_has_two_forms(request: DeferredChatRequest) -> None:
    """Values, or the client's bytes."""
    assert_type(request.messages, list[ChatMessage] | bytes)
    assert_type(request.tools, list[Tool] | bytes | None | UnsetType)
