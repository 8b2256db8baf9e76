"""Whatever is raised, as a reply that is the OpenAI error object."""

import math
from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from schemas.codec import DecodeFailure, encode_json
from schemas.openai.errors import ErrorKind, ServingError, invalid, kind_of_status
from worker.metrics import Counters

_SENTENCES: Final[Mapping[int, str]] = {
    404: "There is nothing at this path.",
    405: "This path does not take this method.",
}


def install(app: FastAPI, counters: Counters) -> None:
    """Answer every exception that leaves a handler, the framework's own included."""

    async def ours(_request: Request, error: Exception) -> Response:
        counters.decode_failures += isinstance(error, DecodeFailure)
        return error_reply(error if isinstance(error, ServingError) else _failed())

    async def routing(_request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return error_reply(_failed())
        sentence = _SENTENCES.get(error.status_code, "The request cannot be answered.")
        return error_reply(ServingError(kind_of_status(error.status_code), sentence), error.headers)

    async def validation(_request: Request, _error: Exception) -> Response:
        return error_reply(invalid("A parameter of the request is missing or of the wrong type."))

    app.add_exception_handler(ServingError, ours)
    app.add_exception_handler(HTTPException, routing)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(Exception, ours)


def error_reply(error: ServingError, headers: Mapping[str, str] | None = None) -> Response:
    """The reply for an error, with Retry-After where it says when to come back."""
    made = dict(headers or {})
    if error.retry_after is not None:
        made["retry-after"] = str(math.ceil(error.retry_after))
    if error.kind is ErrorKind.TOO_LARGE:
        # What is left of the body is not read.
        made["connection"] = "close"
    return Response(encode_json(error.body()), error.status, made, media_type="application/json")


def _failed() -> ServingError:
    return ServingError(ErrorKind.INTERNAL, "The server failed on this request.", code="internal_error")
