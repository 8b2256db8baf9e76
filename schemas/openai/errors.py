"""The OpenAI error object, the closed set of kinds an error can have, and what each kind is on HTTP.

    ServingError   anything a client is told: a kind, a sentence, the field it is about

Source: OpenAI API reference, "Error codes"; `{"error": {"message", "type", "param", "code"}}` is what every client parses.
"""

from enum import StrEnum

from msgspec import Struct


class ErrorKind(StrEnum):
    """Every way a request can fail. HTTP status and OpenAI type are two tables keyed by it, complete by test."""

    INVALID = "invalid"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    TIMED_OUT_READING = "timed_out_reading"
    LENGTH_REQUIRED = "length_required"
    TOO_LARGE = "too_large"
    UNSUPPORTED_MEDIA = "unsupported_media"
    HEADERS_TOO_LARGE = "headers_too_large"
    RATE_LIMITED = "rate_limited"
    INTERNAL = "internal"
    NOT_IMPLEMENTED = "not_implemented"
    BAD_WORKER = "bad_worker"
    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"

    @classmethod
    def _missing_(cls, value: object) -> "ErrorKind | None":
        """A kind that only a newer peer knows: the request failed, and that is all that can be said."""
        return cls.INTERNAL if isinstance(value, str) else None


HTTP_STATUS: dict[ErrorKind, int] = {
    ErrorKind.INVALID: 400,
    ErrorKind.UNAUTHENTICATED: 401,
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.METHOD_NOT_ALLOWED: 405,
    ErrorKind.TIMED_OUT_READING: 408,
    ErrorKind.LENGTH_REQUIRED: 411,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.UNSUPPORTED_MEDIA: 415,
    ErrorKind.HEADERS_TOO_LARGE: 431,
    ErrorKind.RATE_LIMITED: 429,
    ErrorKind.INTERNAL: 500,
    ErrorKind.NOT_IMPLEMENTED: 501,
    ErrorKind.BAD_WORKER: 502,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.DEADLINE: 504,
    ErrorKind.CANCELLED: 499,
}

OPENAI_TYPE: dict[ErrorKind, str] = {
    ErrorKind.INVALID: "invalid_request_error",
    ErrorKind.UNAUTHENTICATED: "authentication_error",
    ErrorKind.FORBIDDEN: "permission_error",
    ErrorKind.NOT_FOUND: "invalid_request_error",
    ErrorKind.METHOD_NOT_ALLOWED: "invalid_request_error",
    ErrorKind.TIMED_OUT_READING: "invalid_request_error",
    ErrorKind.LENGTH_REQUIRED: "invalid_request_error",
    ErrorKind.TOO_LARGE: "invalid_request_error",
    ErrorKind.UNSUPPORTED_MEDIA: "invalid_request_error",
    ErrorKind.HEADERS_TOO_LARGE: "invalid_request_error",
    ErrorKind.RATE_LIMITED: "rate_limit_error",
    ErrorKind.INTERNAL: "server_error",
    ErrorKind.NOT_IMPLEMENTED: "invalid_request_error",
    ErrorKind.BAD_WORKER: "server_error",
    ErrorKind.UNAVAILABLE: "overloaded_error",
    ErrorKind.DEADLINE: "timeout_error",
    ErrorKind.CANCELLED: "cancelled_error",
}


def kind_of_status(status: int) -> ErrorKind:
    """The kind an HTTP status stands for; other 4xx are INVALID, anything else INTERNAL."""
    for kind, known in HTTP_STATUS.items():
        if known == status:
            return kind
    return ErrorKind.INVALID if 400 <= status < 500 else ErrorKind.INTERNAL


class ErrorObject(Struct, frozen=True, kw_only=True):
    """What went wrong, for people (`message`) and programs (`type`, `code`, and `param`: the request field at fault, or null)."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(Struct, frozen=True, kw_only=True):
    """The body of every reply that is not a success, and the `data:` record that ends a broken stream."""

    error: ErrorObject


class ServingError(Exception):
    """A failure that a client is told about. `message` is a sentence without anything internal in it.

    `retry_after` is in seconds and becomes the Retry-After header.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        """The HTTP status of this failure."""
        return HTTP_STATUS[self.kind]

    def again(self) -> "ServingError":
        """The same failure, to be raised from another place: an exception that is kept must not collect what it passed through."""
        return ServingError(self.kind, self.message, param=self.param, code=self.code, retry_after=self.retry_after)

    def body(self) -> ErrorBody:
        """The OpenAI error object of this failure."""
        return ErrorBody(
            error=ErrorObject(message=self.message, type=OPENAI_TYPE[self.kind], param=self.param, code=self.code)
        )


def invalid(message: str, param: str | None = None, code: str | None = None) -> ServingError:
    """A 400: the request itself is wrong, nothing was started, a retry would fail again."""
    return ServingError(ErrorKind.INVALID, message, param=param, code=code)
