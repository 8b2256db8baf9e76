"""Reading a request's body: what is refused by its headers, how much is read, and its content coding taken off."""

import asyncio
from collections.abc import Mapping
from typing import Final

from starlette.types import Receive, Scope

from gateway import content_coding
from gateway.admission import Permit
from gateway.content_coding import coding_of, too_large
from gateway.cycle import CYCLE, Cycle
from gateway.exchange import ClientGone
from schemas.codec import MSGPACK_HEADER
from schemas.openai.errors import ErrorKind, ServingError, invalid

Headers = Mapping[bytes, bytes]

_TAG: Final = MSGPACK_HEADER.encode("ascii")
_JSON: Final = b"application/json"


def refuse_by_headers(headers: Headers, max_bytes: int) -> None:
    """Raise for a body that will not be read: tagged, not JSON, in an unknown coding, of no known length, or of too large a one."""
    if _TAG in headers:
        # The tag is for the inner hop: it would let anybody past the readings that this side is for.
        raise invalid("Bodies tagged as msgpack are not accepted here: send JSON.", code="msgpack_not_accepted")
    content_type = headers.get(b"content-type")
    if content_type and content_type != _JSON and not _is_json(content_type):
        raise _unsupported("The content type must be application/json.")
    if b"content-encoding" in headers:
        coding_of(headers[b"content-encoding"])
    transfer = headers.get(b"transfer-encoding")
    if transfer is None and b"content-length" not in headers:
        raise ServingError(
            ErrorKind.LENGTH_REQUIRED, "The request needs a body, and a Content-Length that says its size."
        )
    if transfer is not None and transfer.lower() != b"chunked":
        raise invalid("The only transfer encoding is chunked.")
    if int(headers.get(b"content-length", b"0")) > max_bytes:
        raise too_large(max_bytes)


def body_at_hand(scope: Scope, max_bytes: int, permit: Permit) -> bytes | None:
    """The whole body if it has arrived with the head, as small ones do; else it is to be read. Raises as `read_body`."""
    cycle: Cycle | None = scope.get(CYCLE)
    body = cycle.body() if cycle is not None else None
    if body is not None:
        if len(body) > max_bytes:
            raise too_large(max_bytes)
        permit.grow(len(body))
    return body


async def read_body(receive: Receive, max_bytes: int, permit: Permit) -> bytes:
    """The whole body; `permit` stands for its bytes as they arrive. Raises a 413 before more than `max_bytes` are held."""
    message = await receive()
    body = _piece(message, max_bytes, 0, permit)
    if not message.get("more_body", False):
        return body
    pieces, size = [body], len(body)
    while message.get("more_body", False):
        message = await receive()
        pieces.append(_piece(message, max_bytes, size, permit))
        size += len(pieces[-1])
    return b"".join(pieces)


async def decoded(body: bytes, headers: Headers, max_bytes: int, permit: Permit) -> bytes:
    """The body without its content coding. Decompressed in a thread, up to `max_bytes`: the event loop never waits for that."""
    coding = coding_of(headers.get(b"content-encoding", b""))
    if coding is None:
        return body
    plain = await asyncio.to_thread(content_coding.decoded, coding, body, max_bytes)
    permit.grow(len(plain))
    return plain


def too_slow() -> ServingError:
    """The 408."""
    return ServingError(ErrorKind.TIMED_OUT_READING, "The body did not arrive in time.")


def _piece(message: Mapping[str, object], max_bytes: int, before: int, permit: Permit) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientGone
    piece = message.get("body", b"")
    if not isinstance(piece, bytes):
        raise TypeError("A server gives the body as bytes.")
    if before + len(piece) > max_bytes:
        raise too_large(max_bytes)
    permit.grow(len(piece))
    return piece


def _is_json(content_type: bytes) -> bool:
    """Whether a media type is JSON, whatever its case and parameters (RFC 9110, 8.3.1)."""
    essence = content_type.partition(b";")[0].strip().lower()
    return essence in {b"", _JSON, b"text/json"} or (essence.startswith(b"application/") and essence.endswith(b"+json"))


def _unsupported(message: str) -> ServingError:
    return ServingError(ErrorKind.UNSUPPORTED_MEDIA, message)
