"""Values as msgpack that stands in a frame as it is."""

from typing import Any

import msgspec
from msgspec import Raw

_listed = msgspec.json.Decoder(list[Raw])


def packed(value: Any) -> Raw:
    """A small value as msgpack."""
    return Raw(msgspec.msgpack.encode(value))


def last_of(items: Any, *, deferred: bool) -> Any:
    """A list in the client's JSON with all but its last item left out, in the form that deferred or plain frames have for it.

    Any: a Raw comes, and bytes or a Raw go, which compiled callers could not tell apart by their types.
    """
    last = b"[%b]" % b"".join(bytes(item) for item in _listed.decode(items)[-1:])
    return last if deferred else packed(msgspec.json.decode(last))
