"""A worker's error body, whatever its shape, as the OpenAI error object with nothing internal in it.

Shapes read (trtllm-wire.md 1.12): `{"error": "text"}`, `{"error": {…}}`, `{"object": "error", "message": …}`, `{"detail": …}` of
FastAPI, and our own. HTML, an empty body and garbage become a general sentence.
"""

import re
from typing import Final

import msgspec
from msgspec import Raw

from schemas.codec import MALFORMED
from schemas.openai.errors import OPENAI_TYPE, ErrorBody, ErrorObject, kind_of_status

MAX_MESSAGE_CHARACTERS: Final = 2048
MAX_NAME_CHARACTERS: Final = 256

_fields = msgspec.json.Decoder(dict[str, Raw])
_value = msgspec.json.Decoder()

_EMPTY: Final = frozenset({b"null", b"false", b"{}", b"[]", b'""'})
_ERROR_TYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?;])\s+|\s*[\r\n]+\s*")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_INTERNAL: Final = re.compile(
    r"""
      Traceback | \bFile\ " | \bline\ \d+,\ in\b | \b0x[0-9a-f]{6,}              # tracebacks and addresses
    | \b\w+://                                                                    # URLs
    | (?<![\w/<])/(?!v1/|health\b|metrics\b)[\w.@+-]+(?:/[\w.@+-]*)+             # paths, the public routes apart
    | (?<!\w)~/\w | \b[A-Z]:\\ | \\\\\w                                          # home directories, drives and shares
    | (?<![\w.-])[\w.-]+\.(?:py|pyx|so|cpp|cc|cu|cuh|hpp|h)\b                     # source files and libraries
    | \b\d{1,3}(?:\.\d{1,3}){3}\b | (?:\b[0-9a-f]{1,4}:){3,}[0-9a-f:]* | ::1\b  # IP addresses
    | \blocalhost\b | (?<![\w.-])[a-z0-9][a-z0-9.-]*:\d{4,5}\b                   # hosts with a port
    | (?<![\w.-])[a-z0-9-]+(?:\.[a-z0-9-]+)*\.                                   # hosts without one
      (?:local|localdomain|internal|intranet|lan|svc|cluster|corp|arpa|com|net|org|io|edu|gov|cloud)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)


def lift_error(body: bytes, status: int) -> ErrorBody:
    """The error object for a worker's reply of this status. Never raises.

    `type` and `param` are kept where they are plain names, `code` where it is a string (stock workers put the status there). The
    message is at most 2048 characters; sentences that name a host or a path, and tracebacks, are left out.
    """
    kind = kind_of_status(status)
    parts = _parts(body)
    type_ = _text(parts.get("type"))
    return ErrorBody(
        error=ErrorObject(
            message=_clean(_message(parts)) or _general(status),
            type=type_ if _ERROR_TYPE.fullmatch(type_) else OPENAI_TYPE[kind],
            param=_name(parts.get("param")),
            code=_name(parts.get("code")),
        )
    )


def error_record(payload: bytes) -> ErrorBody | None:
    """The error object if one event's data is an error record, else None.

    A record is one by its own top level: `error` with something in it, or `object: "error"`. Text a model wrote is never one.
    """
    if b'"error"' not in payload:
        return None
    try:
        fields = _fields.decode(payload)
    except MALFORMED:
        return None
    error = bytes(fields.get("error", Raw(b"null")))
    if error in _EMPTY and bytes(fields.get("object", Raw(b"null"))) != b'"error"':
        return None
    return lift_error(payload, 500)


def _parts(body: bytes) -> dict[str, object]:
    """The error's own fields, from wherever they stand; empty for what is not an error body."""
    try:
        parts = _value.decode(body)
    except MALFORMED:
        return {}
    for key in ("detail", "error"):
        inner = parts.get(key) if isinstance(parts, dict) else None
        if isinstance(inner, dict):
            parts = inner
    return parts if isinstance(parts, dict) else {}


def _message(parts: dict[str, object]) -> str:
    for key in ("message", "error", "detail"):
        if parts.get(key):
            return _sentence(parts[key])
    return ""


def _sentence(value: object) -> str:
    """A message as text. FastAPI's `detail` may be a list of `{loc, msg}`; the first says enough."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return _text(value[0].get("msg"))
    return _text(value)


def _clean(message: str) -> str:
    """The message without the sentences that tell something internal. Nothing after the start of a traceback is kept."""
    message = message[: 2 * MAX_MESSAGE_CHARACTERS].partition("Traceback (most recent call last)")[0]
    sentences = [_CONTROL.sub(" ", part).strip() for part in _SENTENCE_END.split(message)]
    kept = " ".join(part for part in sentences if part and not _INTERNAL.search(part))
    if len(kept) > MAX_MESSAGE_CHARACTERS:
        return f"{kept[: MAX_MESSAGE_CHARACTERS - 1]}…"
    return kept


def _general(status: int) -> str:
    if status == 429 or status == 503:
        return "The model server is busy."
    if 400 <= status < 500:
        return "The model server refused the request."
    return "The model server failed."


def _name(value: object) -> str | None:
    """A field's name or an error code, if it is a short text that tells nothing internal."""
    text = _text(value)
    if not text or len(text) > MAX_NAME_CHARACTERS or _CONTROL.search(text) or _INTERNAL.search(text):
        return None
    return text


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
