"""What a routing policy is: it picks one worker of those that could take a request."""

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Loaded(Protocol):
    """A worker as policies see it: its place in the fleet, and how many requests it has in flight from this process."""

    @property
    def index(self) -> int: ...

    @property
    def active(self) -> int: ...


W = TypeVar("W", bound=Loaded)


class Policy(Protocol):
    """One policy object per role and process; it may remember what it chose before."""

    def choose(self, candidates: Sequence[W]) -> W:
        """One of `candidates`, which is never empty and in the order of the fleet."""
        ...
