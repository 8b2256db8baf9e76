"""Tool calls as a model writes them, `{"name": …, "arguments": {…}}` inside `<tool_call>` tags, read while the text comes in.

The name is told as soon as it is certain and the arguments as they come, in the model's own text; only a call whose keys stand in
another order has to be complete first. What is not a call after all is given back as text.
"""

import json
import re
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import uuid4

from schemas.openai.chat import FunctionCallDelta, ToolCallDelta

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"

_NO_CALL = re.compile(r'\s*(?:[^\s{]|\{\s*(?:\}|"(?!name"\s*:)(?:[^"\\]|\\.)*"\s*:))')
"""A text that is something else, told by its first key."""

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


class _Place(StrEnum):
    HEAD = "head"
    ARGUMENTS = "arguments"
    TAIL = "tail"


class Written(NamedTuple):
    """A call that was read whole."""

    name: str
    arguments: str


class CallReader:
    """Reads one call after another. `tagged`: a call ends at its closing tag; otherwise the whole text is one call, or none.

    `names`, unless empty, are the functions that are called; what names another is no call.
    `count` is how many calls have begun, `finished` how many are complete.
    """

    def __init__(self, *, tagged: bool, names: frozenset[str] = frozenset()) -> None:
        self.count = 0
        self.finished = 0
        self._tagged = tagged
        self._names = names
        self._rejected = ""
        self._begin()

    def _begin(self) -> None:
        self._place = _Place.HEAD
        self._buffer = ""
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def feed(self, text: str) -> tuple[list[ToolCallDelta], str | None]:
        """What a piece of text adds, and the text after the call's end, None while the call goes on."""
        self._buffer += text
        made: list[ToolCallDelta] = []
        if self._place is _Place.HEAD:
            rest = self._read_head(made)
            if rest is not None:
                return made, rest
        if self._place is _Place.ARGUMENTS:
            self._read_arguments(made)
        return made, self._read_tail() if self._place is _Place.TAIL else None

    def end(self) -> list[ToolCallDelta]:
        """The text is over: a call that was only waiting for its closing tag is read, arguments that were cut stay as they are."""
        body, waiting = self._buffer, self._place is _Place.HEAD
        self._begin()
        return self._read_whole(body, closed=False) if waiting else []

    def rejected(self) -> str:
        """Text that looked like a call and was none, once."""
        text, self._rejected = self._rejected, ""
        return text

    def _read_head(self, made: list[ToolCallDelta]) -> str | None:
        head = _HEAD.match(self._buffer)
        if head and (name := _decoded(head.group(1))) is not None and self._is_known(name):
            made.append(self._opened(name))
            self._buffer = self._buffer[head.end() :]
            self._place = _Place.ARGUMENTS
            return None
        if not self._tagged:
            return self._read_other()
        body, tag, rest = self._buffer.partition(CALL_CLOSE)
        if not tag:
            return None
        self._begin()
        made += self._read_whole(body, closed=True)
        return rest

    def _read_other(self) -> str | None:
        """Give back a text that is no call, as soon as that is certain."""
        if not _NO_CALL.match(self._buffer):
            return None
        self._rejected = self._buffer
        self._begin()
        return ""

    def _is_known(self, name: str) -> bool:
        return not self._names or name in self._names

    def _read_arguments(self, made: list[ToolCallDelta]) -> None:
        end = self._end_of_object(self._buffer)
        piece = self._buffer if end is None else self._buffer[:end]
        self._buffer = self._buffer[len(piece) :]
        if piece:
            made.append(self._continued(piece))
        if end is not None:
            self._place = _Place.TAIL
            self.finished += 1

    def _end_of_object(self, text: str) -> int | None:
        """Where the arguments end: after the brace that closes them, or before a tag, which no JSON has outside of strings."""
        for place, character in enumerate(text):
            if self._quoted:
                self._quoted = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return place + 1
            elif character == "<":
                return place
        return None

    def _read_tail(self) -> str | None:
        """The text after the closing tag; a call that is followed by the next one without it ends there too."""
        ends = [place for tag in (CALL_CLOSE, CALL_OPEN) if (place := self._buffer.find(tag)) >= 0]
        if not ends or not self._tagged:
            return None
        rest = self._buffer[min(ends) :].removeprefix(CALL_CLOSE)
        self._begin()
        return rest

    def _read_whole(self, body: str, *, closed: bool) -> list[ToolCallDelta]:
        calls = _written(body)
        if not all(self._is_known(call.name) for call in calls) or not calls:
            self._rejected = f"{CALL_OPEN}{body}{CALL_CLOSE if closed else ''}" if self._tagged else body
            return []
        made = []
        for call in calls:
            made += [self._opened(call.name), self._continued(call.arguments)]
            self.finished += 1
        return made

    def _opened(self, name: str) -> ToolCallDelta:
        self.count += 1
        function = FunctionCallDelta(name=name, arguments="")
        return ToolCallDelta(index=self.count - 1, id=f"call_{uuid4().hex[:24]}", type="function", function=function)

    def _continued(self, arguments: str) -> ToolCallDelta:
        return ToolCallDelta(index=self.count - 1, function=FunctionCallDelta(arguments=arguments))


def _decoded(literal: str) -> str | None:
    """The text of a JSON string, None if it is not one."""
    try:
        text: str = json.loads(literal)
    except ValueError:
        return None
    return text


def _written(body: str) -> list[Written]:
    """The calls of a complete body, one object or a list of them; none if it is anything else."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return []
    calls = [_call(item) for item in (value if isinstance(value, list) else [value])]
    return [call for call in calls if call] if all(calls) else []


def _call(value: Any) -> Written | None:
    """A decoded value as a call. Any: it is whatever the model wrote."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        return Written(value["name"], arguments)
    return Written(value["name"], json.dumps({} if arguments is None else arguments, ensure_ascii=False))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
