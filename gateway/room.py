"""How many client connections there may be."""

from typing import Final

from msgspec import Struct

OWN_DESCRIPTORS: Final = 48
"""File descriptors that are not connections for requests: the listener, the loop, logs, health checks."""


class Room(Struct, frozen=True):
    """How many connections are `served`, and how many beside them are told that they are not."""

    served: int
    refused: int


UNLIMITED: Final = Room(served=1 << 30, refused=0)
"""Where nobody counts."""


def room_in(descriptors: int) -> Room:
    """What so many file descriptors have room for: a served connection may need two more, one for each leg's worker.

    The listener's queue is as long as there may be refused connections: the event loop takes all that wait there at once, and what
    it has no descriptor for could only be dropped without a word.
    """
    left = max(descriptors - OWN_DESCRIPTORS, 8)
    refused = left // 5
    return Room(served=(left - 2 * refused) // 3, refused=refused)
