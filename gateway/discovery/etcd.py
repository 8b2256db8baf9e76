"""Workers found in etcd: the keys of a prefix are listed, then watched from the list's revision, again and again.

etcd is asked through the JSON gateway of its own client port, by aiohttp: a well-kept client that brings nothing else. The gRPC
clients for etcd register messages under bare file names (`rpc.proto`, `kv.proto`), and two programs that do so cannot live in one
process (TensorRT-LLM's images have others); etcd's JSON is a stable interface since 3.4.

When etcd cannot be asked, the fleet stays as it is. Keys that are missing when it comes back have the time of a lease to appear
again, because an etcd that lost its data has forgotten workers that are still there.
"""

import asyncio
import json
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import aiohttp
import structlog
from msgspec import Struct, field

from gateway.fleet import Fleet
from gateway.links.base import Link
from gateway.links.choice import LinkRefused
from gateway.member import Role, Worker
from schemas.cluster import ROLES, Registration, key_prefix
from schemas.codec import guarded, json_decoder
from schemas.openai.errors import ServingError

CALL_SECONDS: Final = 5.0
"""How long etcd may take to answer, and how long the start waits for it."""
RELIST_SECONDS: Final = 30.0
"""How long one watch is trusted: a connection that died without a word is noticed after this time."""
RETRY_SECONDS: Final = 1.0
MAX_LINE_BYTES: Final = 4 << 20
"""The largest message of a watch that is read; etcd breaks larger ones up at 1.5 MiB."""

_ROLES: Final = {ROLES["context"]: Role.CONTEXT, ROLES["generation"]: Role.GENERATION}
_log = structlog.get_logger(__name__)


class EtcdFailed(Exception):
    """etcd answered something else than what was asked for. The message is for the log."""


_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, ValueError, ServingError, EtcdFailed)
"""What asking etcd may raise: no connection, no answer in time, or none that can be read."""


class Cluster(Struct, frozen=True, kw_only=True):
    """Which keys, and where. `inactive_timeout` is the time of a lease, in seconds."""

    addresses: tuple[str, ...]
    name: str = ""
    inactive_timeout: float = 10.0


class _Header(Struct):
    revision: str = "0"


class _KeyValue(Struct):
    key: str
    value: str = ""


class _Range(Struct):
    header: _Header
    kvs: list[_KeyValue] = field(default_factory=list)


class _Event(Struct):
    kv: _KeyValue
    type: str = "PUT"


class _Watched(Struct):
    events: list[_Event] = field(default_factory=list)
    canceled: bool = False
    compact_revision: str = "0"
    cancel_reason: str = ""


class _Message(Struct):
    result: _Watched | None = None


class _Known(Struct):
    registration: Registration
    worker: Worker


_range = json_decoder(_Range)
_message = json_decoder(_Message)
_registration = json_decoder(Registration)


class EtcdDiscovery:
    """Keeps a fleet as the keys of a cluster say. `make_link` makes the link to a URL, or raises ValueError or LinkRefused."""

    def __init__(self, cluster: Cluster, fleet: Fleet, make_link: Callable[[str], Link]) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._make_link = make_link
        self._addresses = deque(cluster.addresses)
        self._known: dict[str, _Known] = {}
        self._missing: dict[str, asyncio.TimerHandle] = {}
        self._checks: set[asyncio.Task[None]] = set()
        self._listed = asyncio.Event()
        self._lost = False
        self._looking: asyncio.Task[None] | None = None

    def registered(self) -> list[Registration]:
        """The workers known now, in the order they were found."""
        return [known.registration for known in self._known.values()]

    async def start(self) -> None:
        """Find who is there, and keep looking in the background. An etcd that does not answer in time is asked again later."""
        self._looking = asyncio.create_task(self._keep_looking(), name="etcd-discovery")
        with suppress(TimeoutError):
            async with asyncio.timeout(CALL_SECONDS):
                await self._listed.wait()
        await asyncio.gather(*self._checks)

    async def close(self) -> None:
        """Stop looking. A second call does nothing."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        for timer in self._missing.values():
            timer.cancel()
        self._missing.clear()

    # --- asking ---

    async def _keep_looking(self) -> None:
        async with aiohttp.ClientSession(read_bufsize=MAX_LINE_BYTES) as http:
            while True:
                try:
                    await self._watch(http, await self._list(http))
                except _FAILURES as error:
                    self._note_loss(error)
                    await asyncio.sleep(RETRY_SECONDS)

    def _note_loss(self, error: Exception) -> None:
        """Say it once an outage, and ask the next member of the cluster."""
        if not self._lost:
            _log.warning("etcd.lost", address=self._addresses[0], reason=f"{type(error).__name__}: {error}")
        self._lost = True
        self._addresses.rotate(-1)

    async def _list(self, http: aiohttp.ClientSession) -> int:
        """Make the fleet what the keys are now. Answers their revision."""
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS)
        async with http.post(self._url("kv/range"), data=json.dumps(self._prefix()), timeout=timeout) as reply:
            if reply.status != 200:
                raise EtcdFailed(f"The list was answered with {reply.status}.")
            listed: _Range = guarded(_range.decode, await reply.read())
        self._reconcile({_text(pair.key): pair.value for pair in listed.kvs})
        if self._lost:
            _log.info("etcd.found", address=self._addresses[0])
        self._lost = False
        self._listed.set()
        return int(listed.header.revision)

    async def _watch(self, http: aiohttp.ClientSession, revision: int) -> None:
        """Follow the keys from the revision after this one, until it is time to list them again."""
        created = {"create_request": self._prefix() | {"start_revision": str(revision + 1)}}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CALL_SECONDS)
        trusted = asyncio.timeout(RELIST_SECONDS)
        try:
            async with trusted, http.post(self._url("watch"), data=json.dumps(created), timeout=timeout) as reply:
                async for line in reply.content:
                    if not self._follow(line):
                        return
        except TimeoutError:
            if trusted.expired():
                return
            raise
        raise EtcdFailed("The watch ended.")

    def _follow(self, line: bytes) -> bool:
        """Do what one message of a watch says. False when the revision is gone by compaction: the keys must be listed again."""
        message: _Message = guarded(_message.decode, line)
        if message.result is None:
            raise EtcdFailed(f"The watch failed: {line[:200]!r}.")
        if message.result.canceled:
            if message.result.compact_revision == "0":
                raise EtcdFailed(f"The watch was cancelled: {message.result.cancel_reason}.")
            return False
        for event in message.result.events:
            key = _text(event.kv.key)
            if event.type == "DELETE":
                self._leave(key)
            else:
                self._put(key, event.kv.value)
        return True

    def _url(self, path: str) -> str:
        return f"http://{self._addresses[0]}/v3/{path}"

    def _prefix(self) -> dict[str, Any]:
        prefix = key_prefix(self._cluster.name)
        # The end of a range of keys is exclusive: the prefix with its last character, a slash, counted up by one.
        return {"key": _base64(prefix), "range_end": _base64(prefix[:-1] + "0")}

    # --- keeping the fleet ---

    def _reconcile(self, listed: Mapping[str, str]) -> None:
        for key in [known for known in self._known if known not in listed]:
            if not self._lost:
                self._leave(key)
            elif key not in self._missing:
                loop = asyncio.get_running_loop()
                self._missing[key] = loop.call_later(self._cluster.inactive_timeout, self._leave, key)
        for key, value in listed.items():
            self._put(key, value)

    def _put(self, key: str, value: str) -> None:
        """A key is there with this value: a worker comes, or says that it is still there."""
        try:
            registration: Registration = guarded(_registration.decode, b64decode(value))
            role = _ROLES[registration.role]
        except (ServingError, ValueError, KeyError) as error:
            _log.warning("discovery.ignored", key=key, reason=f"{type(error).__name__}: {error}")
            return
        if timer := self._missing.pop(key, None):
            timer.cancel()
        known = self._known.get(key)
        if known is None or known.registration != registration:
            self._join(key, registration, role)

    def _join(self, key: str, registration: Registration, role: Role) -> None:
        address = (registration.host, registration.port)
        # Another life of the same process, or its key with another value: what was known at this address is gone.
        for other, known in list(self._known.items()):
            if other == key or (known.registration.host, known.registration.port) == address:
                self._leave(other)
        host = f"[{registration.host}]" if ":" in registration.host else registration.host
        try:
            link = self._make_link(f"http://{host}:{registration.port}")
        except (ValueError, LinkRefused) as error:
            _log.warning("discovery.ignored", key=key, reason=str(error))
            return
        worker = Worker(self._fleet.free_index(), role, link)
        self._known[key] = _Known(registration, worker)
        _log.info("discovery.joined", key=key, worker=worker.index, role=role)
        check = self._fleet.add(worker)
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    def _leave(self, key: str) -> None:
        """A key is gone: its worker gets no more work, and finishes what it has."""
        if timer := self._missing.pop(key, None):
            timer.cancel()
        known = self._known.pop(key, None)
        if known is not None:
            _log.info("discovery.left", key=key, worker=known.worker.index)
            self._fleet.remove(known.worker)


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode("ascii")


def _text(key: str) -> str:
    return b64decode(key).decode("utf-8", "replace")
