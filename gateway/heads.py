"""Recognising a message whose head was seen before on its connection, so that it need not be parsed again.

Who asks again asks in the same words: between two requests of one client, and between two replies of one worker, mostly nothing but
the length of the body changes. What the parser (llhttp) made of a head then holds for the next one, and a message that is here as a
whole is cut in two where the parser would have cut it. Whatever differs by a byte goes to the parser.
"""

import re
from typing import Final, Generic, TypeVar

LARGEST: Final = 4096
"""Longer heads are not kept, in bytes."""
MOST_LESSONS: Final = 8
"""A connection that was of another mind so often in a row is not watched any more: learning costs more than parsing."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length: ?([0-9]{1,10})\r\n", re.IGNORECASE)
_MOST_DIGITS: Final = 10

T = TypeVar("T")


class RepeatedHead(Generic[T]):
    """The last head of one connection, all but the digits of its Content-Length, and what was understood of it."""

    __slots__ = ("_after", "_before", "_lessons", "understood")

    def __init__(self) -> None:
        self.understood: T | None = None
        self._before = b""
        self._after = b""
        self._lessons = 0

    def body_of(self, message: bytes) -> bytes | None:
        """The body of a message that has this head and is exactly as long as it says; None for anything else."""
        if self.understood is None or not message.startswith(self._before):
            return None
        start = len(self._before)
        end = message.find(b"\r", start, start + _MOST_DIGITS + 1)
        digits = message[start:end] if end > 0 else b""
        if not digits.isdigit() or not message.startswith(self._after, end):
            return None
        body = end + len(self._after)
        if len(message) - body != int(digits):
            return None
        self._lessons = 0
        return message[body:]

    def learn(self, message: bytes, understood: T) -> None:
        """Remember the head of a message that the parser has found to be a whole one. Does nothing where that is not worth it."""
        if self._lessons == MOST_LESSONS:
            return
        self._lessons += 1
        end = message.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(message, 0, end)
        if length is None or end > LARGEST or len(message) - end != int(length[1]):
            self.understood = None
            return
        self._before, self._after = message[: length.start(1)], message[length.end(1) : end]
        self.understood = understood
