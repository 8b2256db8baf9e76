"""The messages of a request as a chat template reads them: plain dicts whose `content` is always text."""

import json
from typing import Any

from msgspec import UnsetType

from schemas.openai.chat import ChatMessage, ContentPart, FunctionCall, Tool, ToolCall
from schemas.openai.errors import invalid
from worker.fields import given
from worker.tools import call_text, offer_text, response_text

Message = dict[str, Any]
"""A message as templates read it. Any: tool calls are nested, and their arguments are whatever JSON they hold."""


def conversation(messages: list[ChatMessage], tools: list[Tool], *, native: bool) -> list[Message]:
    """The messages for a template. `native`: it has a place for tools; otherwise tools, calls and their answers become text."""
    read = [_message(message, f"messages[{number}]") for number, message in enumerate(messages)]
    if native:
        return [_with_parsed_arguments(message) for message in read]
    return _offered(_as_text(read), tools)


def _message(message: ChatMessage, place: str) -> Message:
    calls = _calls(message, place)
    made: Message = {"role": _role(message.role), "content": _content(message, place, optional=bool(calls))}
    if calls:
        made["tool_calls"] = calls
    for name in ("name", "tool_call_id"):
        value = getattr(message, name)
        if isinstance(value, str):
            made[name] = value
    reasoning = _reasoning(message)
    if reasoning:
        made["reasoning_content"] = reasoning
    return made


def _role(role: str) -> str:
    """Older and newer names of the same thing; a role nobody knows is the template's business."""
    return {"developer": "system", "function": "tool"}.get(role, role)


def _reasoning(message: ChatMessage) -> str:
    return given(message.reasoning_content, "") or given(message.reasoning, "")


def _content(message: ChatMessage, place: str, *, optional: bool) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return _joined(content, place)
    if isinstance(message.refusal, str):
        return message.refusal
    if optional or _reasoning(message):
        return ""
    alternative = " or 'tool_calls'" if message.role == "assistant" else ""
    raise invalid(f"Invalid value for '{place}': a message needs 'content'{alternative}.", f"{place}.content")


def _joined(parts: list[ContentPart], place: str) -> str:
    if not parts:
        raise invalid(f"Invalid value for '{place}.content': expected at least one part.", f"{place}.content")
    return "\n".join(_part(part, f"{place}.content[{number}]") for number, part in enumerate(parts))


def _part(part: ContentPart, place: str) -> str:
    if part.type not in ("text", "refusal"):
        known = "this model reads 'text' and 'refusal' parts only"
        raise invalid(f"Invalid value for '{place}.type': '{part.type}' is not supported; {known}.", f"{place}.type")
    text = part.text if part.type == "text" else part.refusal
    if not isinstance(text, str):
        raise invalid(f"Invalid value for '{place}': a {part.type} part needs '{part.type}'.", f"{place}.{part.type}")
    return text


def _calls(message: ChatMessage, place: str) -> list[Message]:
    calls = [_call(call, f"{place}.tool_calls[{number}]") for number, call in enumerate(given(message.tool_calls, []))]
    if isinstance(message.function_call, FunctionCall):
        calls.append(_called(message.function_call, None))
    return calls


def _call(call: ToolCall, place: str) -> Message:
    if call.type != "function" or isinstance(call.function, UnsetType):
        raise invalid(f"Invalid value for '{place}': only calls with a 'function' are supported.", f"{place}.function")
    return _called(call.function, call.id)


def _called(function: FunctionCall, id_: str | None) -> Message:
    made: Message = {"type": "function", "function": {"name": function.name, "arguments": function.arguments}}
    return made if id_ is None else {"id": id_, **made}


def _with_parsed_arguments(message: Message) -> Message:
    """Templates with a place for tools expect arguments as an object; what is none stays the text it was."""
    for call in message.get("tool_calls", []):
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"] or "{}")
        except (ValueError, RecursionError):
            continue
        if isinstance(arguments, dict):
            function["arguments"] = arguments
    return message


# --- for templates without tools ---


def _as_text(messages: list[Message]) -> list[Message]:
    """Calls become part of the assistant's words; the answers of tools that follow each other become one message of the user."""
    made: list[Message] = []
    answering = False
    for message in messages:
        calls = message.pop("tool_calls", [])
        if message["role"] != "tool":
            answering = False
            texts = [message["content"], *(call_text(FunctionCall(**call["function"])) for call in calls)]
            made.append({**message, "content": "\n".join(text for text in texts if text)})
            continue
        answer = response_text(message["content"])
        if answering:
            made[-1]["content"] += f"\n{answer}"
        else:
            made.append({"role": "user", "content": answer})
        answering = True
    return made


def _offered(messages: list[Message], tools: list[Tool]) -> list[Message]:
    """The messages with the tools shown in the system prompt."""
    if not tools:
        return messages
    offer = offer_text(tools)
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": offer}, *messages]
    first = {**messages[0], "content": f"{messages[0]['content']}\n\n{offer}"}
    return [first, *messages[1:]]
