"""File descriptors: as many as the system allows, and how many connections they have room for."""

import resource
from contextlib import suppress
from typing import Final

from msgspec import Struct

OWN_DESCRIPTORS: Final = 32
"""Those that are no connections for requests: the listeners, the loop, logs, the gateways' channels, what an engine reads."""


class Room(Struct, frozen=True):
    """How many connections there may be: those that are `served`, and those beside them that are told that they are not."""

    served: int
    refused: int


def raise_limit() -> None:
    """Take what the system allows this process, instead of the low default: a stream is a socket, and a hand-off one more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def room() -> Room:
    """What there is room for in this process."""
    return room_in(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def room_in(descriptors: int) -> Room:
    """What so many descriptors have room for: a served connection may need another one, to fetch a prefill state.

    The listener's queue is as long as there may be refused connections: the event loop takes all that wait there at once, and what
    it has no descriptor for could only be dropped without a word.
    """
    left = max(descriptors - OWN_DESCRIPTORS, 8)
    refused = left // 5
    return Room(served=(left - 2 * refused) // 2, refused=refused)
