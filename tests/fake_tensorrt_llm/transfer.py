"""Where engines find each other's state: the KV cache goes past the servers."""

import asyncio
from collections import defaultdict
from hashlib import blake2b
from typing import NamedTuple


class Handed(NamedTuple):
    """A context engine's state, as the generation engine needs it."""

    key: bytes
    tokens: list[int]
    state: bytes
    usage: dict[str, dict[str, int]]


def opaque(request_id: int, key: bytes) -> bytes:
    """What a context engine says of its state: bytes that are no text."""
    return b"\xfb\xff" + blake2b(str(request_id).encode() + key, digest_size=24).digest()


class Exchange:
    """States by request id, each taken once."""

    def __init__(self) -> None:
        self.handed: dict[int, Handed] = {}
        self._arrived: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._wanted: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    def put(self, request_id: int, handed: Handed) -> None:
        """Offer a state."""
        self.handed[request_id] = handed
        self._arrived[request_id].set()

    def take(self, request_id: int | None, state: bytes | None) -> Handed | None:
        """The state of an id, if it is the one the opaque bytes speak of; None if there is none."""
        handed = self.handed.get(request_id) if request_id is not None else None
        if handed is None or request_id is None or handed.state != state:
            return None
        return self._taken(request_id)

    def _taken(self, request_id: int) -> Handed:
        """Once: the next request of this id has to bring a state of its own."""
        del self._arrived[request_id]
        self._wanted.pop(request_id, None)
        return self.handed.pop(request_id)

    async def meet(self, request_id: int) -> Handed:
        """Generation first: say that it is wanted, wait for it, take it."""
        self._wanted[request_id].set()
        await self._arrived[request_id].wait()
        return self._taken(request_id)

    async def wanted(self, request_id: int) -> None:
        """Generation first: wait until the generation engine is there."""
        await self._wanted[request_id].wait()


EXCHANGE = Exchange()
