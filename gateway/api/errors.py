"""What a failure is on HTTP beside its status and body: the headers that tell a client what to do about it."""

import math

from starlette.requests import Request
from starlette.responses import Response

from gateway.content_coding import ACCEPTED
from schemas.codec import encode_json
from schemas.openai.errors import ErrorKind, ServingError, kind_of_status

UNSERVED = {
    "/v1/embeddings": "There are no embeddings here: the engines of this server's workers generate text only.",
    "/v1/responses": "The Responses API is not served here; use /v1/chat/completions.",
}
"""Endpoints of the OpenAI API that clients are used to and do not find here: what to tell them."""

_FUTILE = frozenset({ErrorKind.NOT_IMPLEMENTED, ErrorKind.DEADLINE, ErrorKind.INTERNAL})
"""Kinds with a status that clients retry by themselves, although the same request would fail again or do harm again."""

_SENTENCES = {
    404: "There is no such endpoint here. The endpoints are listed in /openapi.json.",
    405: "This endpoint does not take this method.",
}


def headers_of(error: ServingError) -> list[tuple[bytes, bytes]]:
    """The headers of an error's response. Retry-After is in whole seconds, at least 1; retry-after-ms is exact."""
    headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after))).encode()))
        headers.append((b"retry-after-ms", str(round(error.retry_after * 1000)).encode()))
    if error.kind in _FUTILE:
        headers.append((b"x-should-retry", b"false"))
    if error.kind is ErrorKind.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))
    elif error.kind is ErrorKind.UNSUPPORTED_MEDIA:
        headers.append((b"accept-encoding", ACCEPTED))
    elif error.kind is ErrorKind.TIMED_OUT_READING:
        # What is left of the request would be read as the next one.
        headers.append((b"connection", b"close"))
    return headers


def response_of(error: ServingError) -> Response:
    """The response for a failure of a plain endpoint."""
    response = Response(encode_json(error.body()), error.status)
    response.raw_headers = [*headers_of(error), (b"content-length", str(len(response.body)).encode())]
    return response


async def on_serving_error(_request: Request, error: Exception) -> Response:
    """An endpoint raised what the client is to be told."""
    if not isinstance(error, ServingError):
        raise TypeError("This handler is for ServingError.") from error
    return response_of(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """The router found no endpoint, or not this method."""
    status = getattr(error, "status_code", 500)
    message = _SENTENCES.get(status, "The request could not be served.")
    message = UNSERVED.get(request.url.path, message)
    response = response_of(ServingError(kind_of_status(status), message))
    for name, value in (getattr(error, "headers", None) or {}).items():
        response.headers[name] = value
    return response


async def on_bug(_request: Request, _error: Exception) -> Response:
    """Something nobody expected. It is logged where it is caught; the client learns no more than that."""
    return response_of(internal())


def internal() -> ServingError:
    """The failure that stands for a fault of ours."""
    return ServingError(ErrorKind.INTERNAL, "The server failed to handle the request.", code="internal_error")
