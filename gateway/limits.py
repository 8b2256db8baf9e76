"""What admission holds itself to."""

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """How much is let in. `max_wait_seconds` bounds one request's wait, `max_bytes` the bodies of all requests together."""

    max_in_flight: int = 4096
    max_waiting: int = 1024
    max_wait_seconds: float = 30.0
    max_bytes: int = 1 << 30
