"""The rhythm of health checks."""

from msgspec import Struct


class Probing(Struct, frozen=True, kw_only=True):
    """How workers are checked: every `interval` seconds, each answer within `timeout`; `failures` in a row mean down."""

    interval: float = 1.0
    timeout: float = 2.0
    failures: int = 2
