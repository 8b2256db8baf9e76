"""Prefill state on its way from a context worker to a generation worker: who may have it, and how it is fetched.

    TransferFailed   a state could not be had; its reason is from a closed set and is counted

Who may fetch is settled by a shared key (both signatures below), where one is configured; what was fetched is checked against the
description that travelled apart from it. The fetch is written on asyncio and `httptools`, which the worker's server brings along
anyway: it is one GET on a connection of its own, and an HTTP client library would be a dependency for that alone.
"""

import asyncio
import hmac
import re
import ssl
from enum import StrEnum
from hashlib import blake2b
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

import httptools
from msgspec import Struct, UnsetType

from schemas.disagg import DisaggregatedParams, OpaqueState, handoff_signature
from schemas.openai.errors import ErrorKind, ServingError, invalid

PATH: Final = "/_packrelay/handoff/"
STATE_HEADER: Final = "x-packrelay-handoff"
"""On the reply of a fetch: the description of the state, as `encoded_opaque_state` has it."""
AUTH_HEADER: Final = "x-packrelay-handoff-auth"
WAIT_HEADER: Final = "x-packrelay-handoff-wait-ms"
"""On a fetch: how long to wait for a state that is still being made (generation-first)."""

CONNECT_SECONDS: Final = 2.0
SILENCE_SECONDS: Final = 10.0
SLOWEST_BYTES_PER_SECOND: Final = 1 << 20
"""A transfer that is slower than this on the whole, by more than a silence, is given up: its end is not left to the other side."""
_MAX_OVERHEAD_BYTES: Final = 64 << 10
"""Bytes of a reply that are not the state."""
_READ_BYTES: Final = 1 << 20
_PRINTABLE: Final = re.compile(r"[!-~]*")


class Reason(StrEnum):
    """Why a hand-off failed: the label of its counter."""

    LOST = "lost"
    """The context worker has no such state: expired, evicted, fetched before, or never made."""
    EXPIRED = "expired"
    EVICTED = "evicted"
    FULL = "full"
    REFUSED = "refused"
    """A key is missing or wrong, or the address is not one we fetch from."""
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"
    """Size, digest or content are not what was announced."""
    MISMATCH = "mismatch"
    """The state of another model, engine or prompt."""
    ENGINE = "engine"
    """The engine could not go on from it, or sampled another first token."""


class TransferFailed(Exception):
    """A state could not be had. The message is for logs; the client is told a general sentence."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


# --- who may ---


def check_generation(key: str | None, header: str | None, params: DisaggregatedParams) -> None:
    """Raise a 400 if a generation request that names a state is not signed with the key. Without a key nothing is asked."""
    endpoint, state = endpoint_of(params), params.encoded_opaque_state
    state = None if isinstance(state, UnsetType) else state
    if key is None or (endpoint is None and state is None):
        return
    if not hmac.compare_digest(handoff_signature(key, endpoint, state).encode(), (header or "").encode()):
        raise invalid("Invalid internal disaggregated request authentication")


def fetch_signature(key: str, handle: str) -> str:
    """What a fetch of this handle carries in `AUTH_HEADER`. A handle works once, so its signature need not expire."""
    message = f"{AUTH_HEADER}:{handle}".encode()
    return f"sha256={hmac.new(key.encode(), message, 'sha256').hexdigest()}"


def check_fetch(key: str | None, header: str | None, handle: str) -> None:
    """Raise a 401 if a fetch is not signed by a holder of the key. Without a key nothing is asked."""
    if key is not None and not hmac.compare_digest(fetch_signature(key, handle).encode(), (header or "").encode()):
        raise ServingError(ErrorKind.UNAUTHENTICATED, "The hand-off is not signed, or not with this worker's key.")


def endpoint_of(params: DisaggregatedParams) -> str | None:
    """Where the context worker is: the first, if there are several."""
    endpoint = params.ctx_info_endpoint
    if isinstance(endpoint, list):
        return endpoint[0] if endpoint else None
    return None if isinstance(endpoint, UnsetType) else endpoint


def early_handle(disagg_request_id: int) -> str:
    """The handle of a generation-first state: both workers must know it before there is one."""
    return f"id-{disagg_request_id}"


def digest_of(data: bytes) -> str:
    """BLAKE2b-128 in hex: against damage; who may fetch is the signature's matter."""
    return blake2b(data, digest_size=16).hexdigest()


# --- fetched ---


class Fetched(Struct, frozen=True):
    """What a context worker handed over: the description it gave with it, and the bytes."""

    description: str
    data: bytes


class HandoffClient:
    """Fetches states from other workers. Every step has a deadline, and so has the whole, by the bytes that came; nothing is tried
    twice, no redirect is followed.

    `peers` are the hosts (or host:port) it may ask; empty means any. `limit_bytes` bounds a state. `tls` is for https addresses;
    without it the system's certificates are trusted.
    """

    def __init__(
        self, key: str | None, peers: frozenset[str], limit_bytes: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self._tls = tls
        self._key = key
        self._peers = peers
        self._limit = limit_bytes

    async def fetch(self, endpoint: str, handle: str, wait: float = 0.0) -> Fetched:
        """The state, within `wait` seconds and the time the transfer takes. Raises TransferFailed."""
        url = self._checked(endpoint)
        secure = url.scheme == "https"
        host, port = url.hostname or "", url.port or (443 if secure else 80)
        request = self._request(url.netloc, url.path.rstrip("/") + PATH + quote(handle, safe=""), handle, wait)
        reader, writer = await self._connected(host, port, secure)
        try:
            writer.write(request)
            reply = await self._reply(reader, wait)
        except OSError as error:
            raise TransferFailed(Reason.TRUNCATED, f"The connection to {host}:{port} broke: {error}") from error
        finally:
            writer.transport.abort()
        return reply

    def check_peer(self, endpoint: str) -> None:
        """Raise TransferFailed for an address, of an engine's own scheme, that is no peer's."""
        try:
            url = urlsplit(endpoint)
            allowed = self._is_peer(url.hostname, url.port)
        except ValueError as error:
            raise TransferFailed(Reason.REFUSED, f"Not an address: {endpoint!r}") from error
        if not allowed:
            raise TransferFailed(Reason.REFUSED, f"Not an address this worker takes hand-offs from: {endpoint!r}")

    def _is_peer(self, host: str | None, port: int | None) -> bool:
        return not self._peers or host in self._peers or f"{host}:{port}" in self._peers

    def _checked(self, endpoint: str) -> SplitResult:
        """The parts of an address we may fetch from."""
        try:
            url = urlsplit(endpoint)
            host, port = url.hostname, url.port
        except ValueError as error:
            raise TransferFailed(Reason.REFUSED, f"Not an address: {endpoint!r}") from error
        plain = url.scheme in {"http", "https"} and host and "@" not in url.netloc and _PRINTABLE.fullmatch(endpoint)
        if not plain or not self._is_peer(host, port):
            raise TransferFailed(Reason.REFUSED, f"Not an address this worker fetches from: {endpoint!r}")
        return url

    def _request(self, netloc: str, path: str, handle: str, wait: float) -> bytes:
        lines = [f"GET {path} HTTP/1.1", f"Host: {netloc}", "Connection: close"]
        if wait > 0:
            lines.append(f"{WAIT_HEADER}: {int(wait * 1000)}")
        if self._key is not None:
            lines.append(f"{AUTH_HEADER}: {fetch_signature(self._key, handle)}")
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    async def _connected(self, host: str, port: int, secure: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = (self._tls or ssl.create_default_context()) if secure else None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_connection(host, port, ssl=context, limit=_READ_BYTES)
        except (OSError, TimeoutError) as error:
            raise TransferFailed(Reason.UNREACHABLE, f"No connection to {host}:{port}: {error}") from error

    async def _reply(self, reader: asyncio.StreamReader, wait: float) -> Fetched:
        reply = _Reply(self._limit)
        parser = httptools.HttpResponseParser(reply)
        clock = asyncio.get_running_loop().time
        begun = clock() + wait  # At the latest.
        due = begun + SILENCE_SECONDS
        while not reply.complete:
            try:
                async with asyncio.timeout_at(due):
                    piece = await reader.read(_READ_BYTES)
            except TimeoutError as error:
                said = f"{reply.received} bytes came of the context worker's state, and no more in time."
                raise TransferFailed(Reason.SILENT, said) from error
            if not piece:
                raise TransferFailed(Reason.TRUNCATED, "The connection ended before the state was complete.")
            reply.feed(parser, piece)
            now = clock()
            begun = min(begun, now)
            due = min(now, begun + reply.received / SLOWEST_BYTES_PER_SECOND) + SILENCE_SECONDS
        return reply.fetched(parser.get_status_code())


class _Reply:
    """A reply being parsed; the methods named `on_…` are called by httptools."""

    def __init__(self, limit: int) -> None:
        self.complete = False
        self.received = 0
        """Bytes, of its head and of its body."""
        self._limit = limit
        self._description = b""
        self._body = bytearray()

    def feed(self, parser: httptools.HttpResponseParser, piece: bytes) -> None:
        """Take the next bytes. Raises TransferFailed for what is not HTTP, or too much of it."""
        try:
            parser.feed_data(piece)
        except httptools.HttpParserError as error:
            raise TransferFailed(Reason.DAMAGED, f"The reply is not HTTP: {error}") from error
        self.received += len(piece)
        if len(self._body) > self._limit or self.received - len(self._body) > _MAX_OVERHEAD_BYTES:
            raise TransferFailed(Reason.DAMAGED, "The reply is larger than any state may be.")

    def fetched(self, status: int) -> Fetched:
        """The reply as a state. Raises TransferFailed if it is none."""
        if status == 200:
            return Fetched(self._description.decode("latin-1"), bytes(self._body))
        reason = {404: Reason.LOST, 401: Reason.REFUSED, 403: Reason.REFUSED}.get(status, Reason.UNREACHABLE)
        raise TransferFailed(reason, f"The context worker answered {status}.")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == STATE_HEADER.encode("ascii"):
            self._description = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.complete = True


def check_transfer(announced: OpaqueState, data: bytes) -> None:
    """Raise TransferFailed unless the bytes are the ones that were announced. Hashes them: off the loop, for they may be many."""
    if len(data) != announced.size:
        raise TransferFailed(Reason.TRUNCATED, f"{len(data)} bytes came of {announced.size}.")
    if digest_of(data) != announced.digest:
        raise TransferFailed(Reason.DAMAGED, "The digest is not the one announced.")
