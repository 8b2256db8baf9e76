"""A worker's key in etcd: written under a lease that a heartbeat keeps alive, deleted before the worker stops.

Key, value and timing are those of stock workers (trtllm-wire.md 6). etcd is asked through the JSON gateway of its own client port,
by aiohttp; the gateway's side of it, with the reason, is gateway/discovery/etcd.py.
"""

import asyncio
import json
import math
import os
import random
import time
from base64 import b64encode
from collections import deque
from typing import Any, Final

import aiohttp
import structlog
from msgspec import Struct

from schemas.cluster import ROLES, Registration, key_prefix
from schemas.codec import encode_json, guarded, json_decoder
from schemas.openai.errors import ServingError

MAX_RETRY_SECONDS: Final = 5.0
"""Longest pause before a registration that failed is tried again."""
FAREWELL_SECONDS: Final = 2.0
"""How long the key's deletion may take; the lease deletes it later if it fails."""

_log = structlog.get_logger(__name__)


class EtcdFailed(Exception):
    """etcd answered something else than what was asked for. The message is for the log."""


_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, ValueError, ServingError, EtcdFailed)
"""What asking etcd may raise: no connection, no answer in time, or none that can be read."""


class Cluster(Struct, frozen=True, kw_only=True):
    """Where to register, and how long the key outlives its worker: `inactive_timeout` seconds after the last heartbeat."""

    addresses: tuple[str, ...]
    name: str = ""
    heartbeat_interval: float = 5.0
    inactive_timeout: float = 10.0


class _Lease(Struct):
    ID: str


class _Kept(Struct):
    TTL: str = "0"


class _KeepAlive(Struct):
    result: _Kept


_lease = json_decoder(_Lease)
_keep_alive = json_decoder(_KeepAlive)


def registration_of(role: str, host: str, port: int) -> Registration:
    """What this process writes: its id is new for every life, so that a restarted worker is another one."""
    now = int(time.time() * 1000)
    worker_id = f"{role.upper()}-{host}:{port}-{now}-{os.getpid()}-{random.randrange(1000):03}"
    return Registration(worker_id=worker_id, host=host, port=port, role=ROLES[role])


class Registrar:
    """Keeps one worker registered for as long as it runs. An etcd that does not answer is asked again, and never stops it."""

    def __init__(self, cluster: Cluster, registration: Registration) -> None:
        self.key = key_prefix(cluster.name) + registration.worker_id
        self._cluster = cluster
        self._value = encode_json(registration)
        self._addresses = deque(cluster.addresses)
        self._lease: str | None = None
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Register, and stay registered, in the background. Call it when requests are taken."""
        self._keeping = asyncio.create_task(self._keep_registered(), name="registration")

    async def close(self) -> None:
        """Delete the key. Bounded; a failure is logged, the lease then deletes it. A second call does nothing."""
        keeping, self._keeping = self._keeping, None
        if keeping is None:
            return
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        if self._lease is None:
            return
        try:
            async with asyncio.timeout(FAREWELL_SECONDS), aiohttp.ClientSession() as http:
                await self._ask(http, "lease/revoke", {"ID": self._lease}, FAREWELL_SECONDS)
            _log.info("registration.deleted", key=self.key)
        except _FAILURES as error:
            _log.warning("registration.not_deleted", key=self.key, reason=f"{type(error).__name__}: {error}")

    async def _keep_registered(self) -> None:
        pause = min(MAX_RETRY_SECONDS, self._cluster.heartbeat_interval)
        async with aiohttp.ClientSession() as http:
            while True:
                try:
                    await self._register(http)
                    await self._beat(http)
                except _FAILURES as error:
                    _log.warning("registration.failed", key=self.key, reason=f"{type(error).__name__}: {error}")
                    self._addresses.rotate(-1)
                    await asyncio.sleep(pause)

    async def _register(self, http: aiohttp.ClientSession) -> None:
        """A new lease, and the key under it. A key that is still there from before is this worker's own: its lease is replaced."""
        seconds = str(math.ceil(self._cluster.inactive_timeout))
        granted: _Lease = guarded(_lease.decode, await self._ask(http, "lease/grant", {"TTL": seconds}))
        self._lease = granted.ID
        pair = {"key": _base64(self.key.encode()), "value": _base64(self._value), "lease": granted.ID}
        await self._ask(http, "kv/put", pair)
        _log.info("registration.made", key=self.key)

    async def _beat(self, http: aiohttp.ClientSession) -> None:
        """Keep the lease alive until it is found to be gone, which an etcd that was away for long may say."""
        while True:
            await asyncio.sleep(self._cluster.heartbeat_interval)
            body = await self._ask(http, "lease/keepalive", {"ID": self._lease})
            kept: _KeepAlive = guarded(_keep_alive.decode, body)
            if int(kept.result.TTL) <= 0:
                _log.warning("registration.expired", key=self.key)
                return

    async def _ask(
        self, http: aiohttp.ClientSession, path: str, body: dict[str, Any], seconds: float | None = None
    ) -> bytes:
        """One question to etcd; its answer must come within a heartbeat, or the lease would be in danger."""
        url = f"http://{self._addresses[0]}/v3/{path}"
        timeout = aiohttp.ClientTimeout(total=seconds or self._cluster.heartbeat_interval)
        async with http.post(url, data=json.dumps(body), timeout=timeout) as reply:
            if reply.status != 200:
                raise EtcdFailed(f"{path} was answered with {reply.status}.")
            return await reply.read()


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")
