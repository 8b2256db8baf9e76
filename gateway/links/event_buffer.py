"""Events between a channel, which is never kept waiting, and one stream's reader, who may be slow: bounded by merging."""

from functools import reduce
from typing import Final

from schemas.events import Delta, Event, merge

MAX_UNMERGED: Final = 256
"""Events of one stream that are kept one by one; beyond it the deltas of each choice become one."""


class EventBuffer:
    """What one stream was sent and has not read, in order.

    Every event is handed out as it came as long as the reader keeps up. When it does not, the deltas of each choice are merged:
    what the client receives is the same text in fewer pieces. Nothing is lost; `Started` stays first and the terminal last.
    """

    __slots__ = ("_events", "_limit", "_max_unmerged")

    def __init__(self, max_unmerged: int = MAX_UNMERGED) -> None:
        self._events: list[Event] = []
        self._max_unmerged = max_unmerged
        self._limit = max_unmerged

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> None:
        """Keep an event for the reader. Never blocks."""
        self._events.append(event)
        if len(self._events) > self._limit:
            self._events = merged(self._events)
            # With many choices that is all that merging can do; trying again at every event would cost more than it saves.
            self._limit = max(self._max_unmerged, 2 * len(self._events))

    def take(self) -> list[Event]:
        """Everything that is here."""
        events, self._events = self._events, []
        self._limit = self._max_unmerged
        return events


def merged(events: list[Event]) -> list[Event]:
    """The events of one stream with one delta for each choice, in the order in which the choices began."""
    before: list[Event] = []
    choices: dict[int, list[Delta]] = {}
    after: list[Event] = []
    for event in events:
        if isinstance(event, Delta):
            choices.setdefault(event.index, []).append(event)
        else:
            (after if choices else before).append(event)
    return [*before, *(_one(deltas) for deltas in choices.values()), *after]


def _one(deltas: list[Delta]) -> Delta:
    """The last ones first: the first delta may be a large one that was merged before, and is copied once this way."""
    first, *others = deltas
    return merge(first, reduce(merge, others)) if others else first
