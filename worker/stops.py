"""Stop strings, found in text that comes in pieces.

Each string is matched by the Knuth-Morris-Pratt automaton: its state is the length of the longest ending of the text so far that
begins the string, which is also how much text must be held back. So the result does not depend on how the text is cut into pieces,
and a piece costs its length, however long the strings are.
"""

from collections.abc import Iterable
from typing import NamedTuple


class StopString(NamedTuple):
    """A stop string and its failure table: `fallback[k]` is the longest proper border of its first k characters."""

    text: str
    fallback: tuple[int, ...]


class StopHit(NamedTuple):
    """Where a piece of text completed a stop string: `end` counts characters of that piece."""

    stop: str
    end: int


def compile_stops(texts: Iterable[str]) -> tuple[StopString, ...]:
    """The automata of the strings, once per request; empty strings and repetitions are left out."""
    return tuple(StopString(text, _borders(text)) for text in dict.fromkeys(texts) if text)


def _borders(text: str) -> tuple[int, ...]:
    table, length = [0, 0], 0
    for character in text[1:]:
        while length and text[length] != character:
            length = table[length]
        length += text[length] == character
        table.append(length)
    return tuple(table)


class StopMatcher:
    """Follows one sequence's text. Not fed again after a hit."""

    def __init__(self, stops: tuple[StopString, ...]) -> None:
        self._stops = stops
        self._states = [0] * len(stops)

    @property
    def held(self) -> int:
        """How many of the last characters could still become part of a stop string."""
        return max(self._states, default=0)

    def feed(self, text: str, *, armed: bool = True) -> StopHit | None:
        """The stop string completed first in this piece; of those completed at the same character the longest.

        Not `armed`, strings completed in this piece do not count.
        """
        hits = [hit for number in range(len(self._stops)) if (hit := self._advance(number, text, armed))]
        return min(hits, key=lambda hit: (hit.end, -len(hit.stop)), default=None)

    def _advance(self, number: int, text: str, armed: bool) -> StopHit | None:
        stop, fallback = self._stops[number]
        state = self._states[number]
        if state == 0 and stop[0] not in text:
            return None
        for place, character in enumerate(text):
            while state and stop[state] != character:
                state = fallback[state]
            state += stop[state] == character
            if state == len(stop):
                if armed:
                    return StopHit(stop, place + 1)
                state = fallback[state]
        self._states[number] = state
        return None
