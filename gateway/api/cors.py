"""Which web pages may call from a browser. Off unless origins are listed; preflights are answered before a key is asked for."""

from collections.abc import Collection, Mapping
from typing import Final

Headers = list[tuple[bytes, bytes]]

_EXPOSED: Final = (b"access-control-expose-headers", b"x-request-id, x-packrelay-ignored-fields, retry-after")
_MAX_AGE: Final = (b"access-control-max-age", b"600")
_VARY: Final = (b"vary", b"origin")


class Cors:
    """The origins that are let in; `*` stands for all of them. No credentials: keys travel in a header."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = {origin.encode("latin-1", "replace").lower() for origin in origins}
        self._any = b"*" in self._origins
        self.enabled = bool(self._origins)
        """Whether anything is ever added."""

    def headers(self, request: Mapping[bytes, bytes]) -> Headers:
        """What is added to every response."""
        if not self._origins:
            return []
        if self._any:
            return [(b"access-control-allow-origin", b"*"), _EXPOSED]
        origin = request.get(b"origin", b"")
        if origin.lower() not in self._origins:
            return [_VARY]
        return [(b"access-control-allow-origin", origin), _EXPOSED, _VARY]

    def preflight(self, request: Mapping[bytes, bytes], methods: bytes) -> Headers:
        """What is added to the answer to OPTIONS, beside `headers`, for a browser that asks first."""
        if not self._origins or b"access-control-request-method" not in request:
            return []
        wanted = request.get(b"access-control-request-headers", b"authorization, content-type")
        return [(b"access-control-allow-methods", methods), (b"access-control-allow-headers", wanted), _MAX_AGE]
