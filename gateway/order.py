"""What one leg sends, beside its frame."""

from msgspec import Struct

from gateway.links.base import Deadlines


class Order(Struct, frozen=True, kw_only=True):
    """What is sent: the same for every worker a leg may go to."""

    operation: str
    headers: dict[str, str]
    deadlines: Deadlines
