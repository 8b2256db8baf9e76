"""Whole SSE events out of bytes that arrive in any pieces, found by byte search.

An event ends with a blank line: LF LF, CR LF CR LF, CR CR, or LF CR LF. Only an event that may be the stream's terminal is looked
into; everything else passes as it came (source: WHATWG HTML, "Server-sent events"; trtllm-wire.md 1.9, 1.10).
"""

import re
from typing import Final

from gateway.links.base import BadReply, Take
from gateway.links.errors import error_record
from schemas.codec import encode_json

MAX_EVENT_BYTES: Final = 8 << 20
"""The largest single event that is held while its end is awaited, in bytes."""

_BLANK_LINES: Final = (b"\n\n", b"\n\r\n", b"\r\r")  # the second also ends CR LF CR LF
_BLANK_LINE: Final = re.compile(rb"\r\n\r\n|\n\r\n|\n\n|\r\r")
_MARKS: Final = (b"[DONE]", b'"error"')  # Found one by one: a regular expression is ten times slower at it.
_LINE_ENDS: Final = b"\r\n"


class SseReader:
    """Cuts one SSE stream at event boundaries and at its terminal. The outcome does not depend on how the bytes were cut.

    The terminal is the event `data: [DONE]`, or a record whose top-level `error` says something; the latter is rewritten as the
    OpenAI error object. What follows a terminal is dropped: stock workers send a metrics event and a second `[DONE]` there.
    """

    __slots__ = ("_held", "_max_event_bytes", "ended", "failed", "last")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.ended = False
        """Whether the terminal was seen,"""
        self.failed = False
        """and whether it was an error record."""
        self.last = b""
        """The events that end the stream, if they came to a `passing`."""
        self._held = bytearray()
        self._max_event_bytes = max_event_bytes

    def feed(self, data: bytes) -> bytes:
        """All bytes up to the end of the last complete event, or `b""`. The rest is held for the next call.

        Raises BadReply when an event grows beyond the limit without an end.
        """
        if self.ended:
            return b""
        if self._held or not data.endswith(b"\n\n"):
            data = self._complete_part(data)
        # Two searches at memory speed keep every ordinary chunk from being looked into.
        if b"[DONE]" in data or b'"error"' in data:
            return self._up_to_terminal(data)
        return data

    def passing(self, take: Take) -> Take:
        """What gives `take` the whole events of the bytes it is fed; not those that end the stream. Raises as `feed`."""
        held = self._held

        def arrived(data: bytes) -> bool:
            if not held and data.endswith(b"\n\n") and b"[DONE]" not in data and b'"error"' not in data:
                return take(data)
            complete = self.feed(data)
            if self.ended:
                self.last = complete
                return False
            return take(complete) if complete else True

        return arrived

    def _complete_part(self, data: bytes) -> bytes:
        """Add to what is held, and take out of it what is complete. Each byte is searched once, however long the event."""
        held = self._held
        searched = max(len(held) - 2, 0)
        held += data
        end = _end_of_events(held, searched)
        complete = bytes(held[:end])
        del held[:end]
        if len(held) > self._max_event_bytes:
            raise BadReply(f"The worker sent an event of more than {self._max_event_bytes} bytes.")
        return complete

    def _up_to_terminal(self, events: bytes) -> bytes:
        """The events up to and including the first terminal, or all. Only events that bear a mark are looked into."""
        searched = 0
        while (mark := _next_mark(events, searched)) >= 0:
            start = _start_of_event(events, mark)
            blank_line = _BLANK_LINE.search(events, mark)
            end = blank_line.end() if blank_line else len(events)
            payload = _payload(events[start:end])
            if payload == b"[DONE]":
                self.ended = True
                return events[:end]
            error = error_record(payload)
            if error is not None:
                self.ended = self.failed = True
                return b"%bdata: %b\n\n" % (events[:start], encode_json(error))
            searched = end
        return events


def _next_mark(events: bytes, searched: int) -> int:
    """Where the next event that may be the terminal bears its mark; -1 if none does."""
    return min([found for mark in _MARKS if (found := events.find(mark, searched)) >= 0], default=-1)


def _start_of_event(events: bytes, within: int) -> int:
    """Where the event begins that this offset is in."""
    start = 0
    for blank in _BLANK_LINES:
        # Behind what was found already: the usual blank line comes first, and spares the others the search.
        found = events.rfind(blank, start, within)
        if found >= 0:
            start = found + len(blank)
    return _skip_line_ends(events, start)


def _end_of_events(held: bytearray, searched: int) -> int:
    """The offset after the last blank line. Line ends right after it, or at the very start, are empty lines and belong to it."""
    end = 0
    for blank in _BLANK_LINES:
        found = held.rfind(blank, searched)
        if found >= 0:
            end = max(end, found + len(blank))
    return _skip_line_ends(held, end)


def _skip_line_ends(data: bytes | bytearray, start: int) -> int:
    while start < len(data) and data[start] in _LINE_ENDS:
        start += 1
    return start


def _payload(event: bytes) -> bytes:
    """The data of one event: its `data` lines joined, as an SSE client reads them, without outer white space."""
    lines = [line[5:] for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines).strip()
