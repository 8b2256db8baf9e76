"""What the operator decides about all requests."""

from msgspec import Struct

from gateway.links.base import Deadlines
from schemas import disagg


class Serving(Struct, frozen=True, kw_only=True):
    """How requests are served.

    `retries` is how many more attempts a request has after its first, `retry_fraction` how many all have together, as a fraction
    of the requests (see `RetryBudget`). A prompt of at most `max_local_prefill_length` tokens
    (estimated at 4 bytes each) skips the context leg; 0 never does. `auth_key` signs hand-offs; None leaves them unsigned.
    `node_id` (0 to 255; None draws one) and `process` (this one's number among its siblings) are parts of
    every id minted here. With `strip_message_history` the generation leg of a chat has its last message only.
    """

    schedule_style: int = disagg.CONTEXT_FIRST
    max_local_prefill_length: int = 0
    retries: int = 1
    retry_fraction: float = 0.2
    auth_key: str | None = None
    node_id: int | None = None
    process: int = 0
    strip_message_history: bool = False
    deadlines: Deadlines = Deadlines()
