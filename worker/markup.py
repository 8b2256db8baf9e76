"""What models write between tags: `<think>…</think>` and `<tool_call>…</tool_call>`, told apart while the text comes in.

The result does not depend on how the text is cut into pieces: text is held back only while it could still become a tag.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from schemas.openai.chat import ToolCallDelta
from worker.tool_calls import CALL_OPEN, CallReader

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


class MarkupOptions(Struct, frozen=True, kw_only=True):
    """Which markup is read. `thinking`: the prompt ended inside `<think>`. `forced`: the whole text is one tool call without tags,
    and the engine ends it; with `names` it may also be something else, and is if it calls none of these.

    `single_call` ends the answer after the first tool call.
    """

    reasoning: bool = False
    thinking: bool = False
    tools: bool = False
    forced: bool = False
    names: frozenset[str] = frozenset()
    single_call: bool = False


class Reading(NamedTuple):
    """What a piece of text turned out to be."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


def joined(readings: Iterable[Reading]) -> Reading:
    """Consecutive readings as one."""
    parts = list(readings)
    return Reading(
        "".join(part.text for part in parts),
        "".join(part.reasoning for part in parts),
        tuple(call for part in parts for call in part.calls),
    )


class _Mode(StrEnum):
    CONTENT = "content"
    THINKING = "thinking"
    CALL = "call"


class MarkupReader:
    """Follows the text of one choice. `called` once a tool call was seen, `complete` when no more text is wanted."""

    def __init__(self, options: MarkupOptions) -> None:
        self._single = options.single_call
        self._tags = {THINK_OPEN: options.reasoning, CALL_OPEN: options.tools}
        self._mode = _Mode.THINKING if options.thinking else _Mode.CALL if options.forced else _Mode.CONTENT
        self._calls = CallReader(tagged=not options.forced, names=options.names)
        self._buffer = ""
        self._spaces = ""
        # White space is held back while it may turn out to be the gap around a tool call, and is no content then.
        self._gap = options.tools
        # The line break after a think tag is layout.
        self._trim = options.thinking

    @property
    def called(self) -> bool:
        return self._calls.count > 0

    @property
    def complete(self) -> bool:
        return self._single and self._calls.finished > 0

    def feed(self, text: str, *, last: bool = False) -> Reading:
        """Read a piece; with `last`, everything that was held back is settled."""
        self._buffer += text
        made = list(self._parts())
        if last:
            made += self._settle()
        return joined(made)

    def _parts(self) -> Iterator[Reading]:
        """Everything that can be told from the buffer; a step that neither makes nor consumes anything ends it."""
        while self._buffer and not self.complete:
            before = len(self._buffer), self._mode
            step = {_Mode.CONTENT: self._content, _Mode.THINKING: self._thinking, _Mode.CALL: self._call}[self._mode]
            yield step()
            if before == (len(self._buffer), self._mode):
                return

    def _content(self) -> Reading:
        tags = [tag for tag, wanted in self._tags.items() if wanted]
        text, tag, self._buffer = _cut(self._buffer, tags)
        said = Reading(text=self._said(text))
        if tag == THINK_OPEN:
            self._mode, self._trim = _Mode.THINKING, True
        elif tag == CALL_OPEN:
            self._mode, self._spaces = _Mode.CALL, ""
        return said

    def _said(self, text: str) -> str:
        """The content without the white space that only separates it from tags."""
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        if not self._gap:
            return text
        held = self._spaces + text
        if not held.strip():
            self._spaces = held
            return ""
        self._spaces, self._gap = "", False
        return held

    def _thinking(self) -> Reading:
        text, tag, self._buffer = _cut(self._buffer, [THINK_CLOSE])
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        if tag:
            self._mode, self._trim = _Mode.CONTENT, True
        return Reading(reasoning=text)

    def _call(self) -> Reading:
        calls, rest = self._calls.feed(self._buffer)
        self._buffer = rest or ""
        if rest is None:
            return Reading(calls=tuple(calls))
        text = self._calls.rejected()
        self._mode, self._gap = _Mode.CONTENT, not text
        return Reading(text=text, calls=tuple(calls))

    def _settle(self) -> list[Reading]:
        """The end: what looked like the beginning of a tag was text, and an open call is all there will be of it."""
        held, self._buffer = self._buffer, ""
        if self.complete:
            return []
        if self._mode is _Mode.THINKING:
            return [Reading(reasoning=held)]
        if self._mode is _Mode.CALL:
            calls = self._calls.end()
            return [Reading(text=self._calls.rejected(), calls=tuple(calls))]
        text = self._said(held)
        spaces, self._spaces = self._spaces, ""
        return [Reading(text=text + ("" if self.called else spaces))]


def _cut(text: str, tags: list[str]) -> tuple[str, str, str]:
    """The text before the first tag, the tag, and what follows; without a tag, "" and the ending that may become one."""
    found = [(place, tag) for tag in tags if (place := text.find(tag)) >= 0]
    if found:
        place, tag = min(found)
        return text[:place], tag, text[place + len(tag) :]
    kept = _unfinished(text, tags)
    return text[: len(text) - kept], "", text[len(text) - kept :]


def _unfinished(text: str, tags: list[str]) -> int:
    """The length of the longest ending of the text that begins a tag."""
    place = text.rfind("<")
    ending = text[place:] if place >= 0 else ""
    return len(ending) if ending and any(tag.startswith(ending) for tag in tags) else 0
