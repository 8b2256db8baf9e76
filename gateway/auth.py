"""API keys: who may ask. Keys are kept and compared as digests, so neither time nor memory tells one."""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from schemas.openai.errors import ErrorKind, ServingError

_SCHEME = b"bearer "


class KeyFileRefused(Exception):
    """The file of API keys cannot be used. The message is for the operator."""


class ApiKeys:
    """The keys that are accepted; without any, everybody is."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._digests = {hashlib.sha256(key).digest() for key in keys}

    def check(self, authorization: bytes | None) -> None:
        """Raise a 401 unless the value of an Authorization header carries one of the keys. Any bytes are a value."""
        if not self._digests:
            return
        if not authorization:
            raise _refused("No API key was given: send it as 'Authorization: Bearer KEY'.")
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise _refused("The API key must be sent as 'Authorization: Bearer KEY'.")
        if not self._knows(authorization[len(_SCHEME) :].strip()):
            raise _refused("The API key is not valid.")

    def _knows(self, key: bytes) -> bool:
        # Whoever guesses cannot choose the digest, so what a set look-up's time tells is of no use; the comparison is constant.
        digest = hashlib.sha256(key).digest()
        return digest in self._digests and any(hmac.compare_digest(digest, known) for known in self._digests)


def read_keys(path: Path) -> ApiKeys:
    """The keys of a file: one a line, UTF-8; empty lines and lines that start with `#` are skipped. Raises KeyFileRefused."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise KeyFileRefused(f"--api-key-file: {path} cannot be read: {error.strerror}.") from error
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith(b"#")]
    if not keys:
        # An empty file would open the gateway to everybody, which nobody means who names a file.
        raise KeyFileRefused(f"--api-key-file: {path} holds no key.")
    return ApiKeys(keys)


def _refused(message: str) -> ServingError:
    return ServingError(ErrorKind.UNAUTHENTICATED, message, code="invalid_api_key")
