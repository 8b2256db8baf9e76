"""Content codings of request bodies (RFC 9110, 8.4.1), taken off in one go and within a limit.

zstd has been in the standard library since Python 3.14 (`compression.zstd`); before that its backport is the same code under
another name, and goes away with Python 3.13.
"""

import sys
import zlib
from collections.abc import Callable
from typing import Final, Protocol

from schemas.openai.errors import ErrorKind, ServingError, invalid

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ACCEPTED: Final = b"gzip, deflate, zstd, identity"
"""What an Accept-Encoding header says of us."""

MAX_PARTS: Final = 16
"""Members of a gzip body, or frames of a zstd body, that are read. Each costs a copy of what follows it."""

MAX_WINDOW_LOG: Final = 23
"""zstd may not ask for a larger window than 8 MiB (RFC 9659, 3)."""


class _Decompressor(Protocol):
    """What the three libraries have in common; `unused_data` follows the end of a part."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _gzip(_body: bytes) -> _Decompressor:
    return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)


def _deflate(body: bytes) -> _Decompressor:
    """Deflate is meant to have zlib's wrapper, and has often been sent without it."""
    wrapped = len(body) >= 2 and body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    return zlib.decompressobj(wbits=zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)


def _zstd(_body: bytes) -> _Decompressor:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG})


_CODINGS: Final[dict[bytes, Callable[[bytes], _Decompressor]]] = {
    b"gzip": _gzip,
    b"x-gzip": _gzip,
    b"deflate": _deflate,
    b"zstd": _zstd,
}


def coding_of(content_encoding: bytes) -> bytes | None:
    """The one coding a Content-Encoding header names, None for a body as it is. Raises a 415 for another one, or several."""
    named = [name for part in content_encoding.lower().split(b",") if (name := part.strip()) not in (b"", b"identity")]
    if not named:
        return None
    if len(named) > 1 or named[0] not in _CODINGS:
        message = "The content encoding is not supported: send gzip, deflate, zstd, or none."
        raise ServingError(ErrorKind.UNSUPPORTED_MEDIA, message)
    return named[0]


def decoded(coding: bytes, body: bytes, max_bytes: int) -> bytes:
    """The body without its coding. Raises a 400 if it is not in it, a 413 before more than `max_bytes` are held."""
    try:
        return _decoded(_CODINGS[coding], body, max_bytes)
    except (zlib.error, zstd.ZstdError) as error:
        raise invalid("The body is not in the encoding that its content-encoding header names.") from error


def _decoded(new: Callable[[bytes], _Decompressor], body: bytes, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while body or not parts:
        if len(parts) == MAX_PARTS:
            raise invalid(f"The compressed body has more than {MAX_PARTS} parts.")
        decompressor = new(body)
        parts.append(decompressor.decompress(body, max_bytes - size + 1))
        size += len(parts[-1])
        if size > max_bytes:
            raise too_large(max_bytes)
        if not decompressor.eof:
            raise invalid("The compressed body is not complete.")
        body = decompressor.unused_data
    return b"".join(parts)


def too_large(max_bytes: int) -> ServingError:
    """The 413."""
    return ServingError(ErrorKind.TOO_LARGE, f"The body is larger than {max_bytes} bytes.", code="body_too_large")
