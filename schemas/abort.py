"""Calling a request off: the body of `POST /_packrelay/abort`."""

from msgspec import Struct


class AbortRequest(Struct, kw_only=True):
    """Forget the request of this id, and the state kept for it. An id nobody knows is fine."""

    request_id: str
