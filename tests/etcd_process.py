"""A real etcd on free ports, with its data in a test's folder: started, killed, started again; and what a test asks it itself."""

import asyncio
import json
import shutil
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.chaos.processes import free_port

BINARY = shutil.which("etcd")
needs_etcd = pytest.mark.skipif(
    BINARY is None, reason="there is no etcd on this machine (Debian: apt-get install etcd-server)"
)
READY_SECONDS = 20.0


class Etcd:
    """One member that is the whole cluster. Its elections are short, so that leases may be of one second."""

    def __init__(self, folder: Path) -> None:
        self.port, self._peer_port = free_port(), free_port()
        self.uri = f"etcd://127.0.0.1:{self.port}"
        self._folder = folder
        self._log = folder / "etcd.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._http = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=5)

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        flags = {
            "data-dir": str(self._folder / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "heartbeat-interval": "20",
            "election-timeout": "200",
        }
        child = self._spawn([BINARY or "etcd", *(f"--{name}={value}" for name, value in flags.items())])
        async with asyncio.timeout(READY_SECONDS):
            while not await self._answers():
                assert child.poll() is None, self._log.read_text()[-2000:]
                await asyncio.sleep(0.02)  # Another process is ready when it says so, and it says so only when asked.

    def _spawn(self, command: list[str]) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(command, stdout=log, stderr=log)
        return self._child

    def kill(self) -> None:
        """Pull the plug. Its data stay."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def forget(self) -> None:
        """Lose the data of one that was killed."""
        shutil.rmtree(self._folder / "data")

    async def close(self) -> None:
        """End it for good."""
        self.kill()
        await self._http.aclose()

    async def _answers(self) -> bool:
        try:
            return (await self._http.post("/v3/kv/range", json={"key": text("/")})).status_code == 200
        except httpx2.HTTPError:
            return False

    async def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """A question of the test's own."""
        reply = await self._http.post(f"/v3/{path}", content=json.dumps(body))
        reply.raise_for_status()
        answer: dict[str, Any] = reply.json()
        return answer

    async def put(self, key: str, value: str, seconds: int | None = None) -> None:
        """Write a key, with a lease of so many seconds that nobody keeps alive."""
        lease = {} if seconds is None else {"lease": (await self.ask("lease/grant", TTL=str(seconds)))["ID"]}
        await self.ask("kv/put", key=text(key), value=text(value), **lease)

    async def delete(self, key: str) -> None:
        """Delete a key."""
        await self.ask("kv/deleterange", key=text(key))

    async def keys(self, prefix: str) -> dict[str, dict[str, Any]]:
        """The keys with a prefix; each has its `value`, and the `lease` it is under."""
        found = await self.ask("kv/range", key=text(prefix), range_end=text(prefix[:-1] + chr(ord(prefix[-1]) + 1)))
        return {
            b64decode(pair["key"]).decode(): {"value": b64decode(pair["value"]).decode(), "lease": pair.get("lease")}
            for pair in found.get("kvs", [])
        }

    async def compact(self) -> None:
        """Forget every revision but the newest."""
        revision = (await self.ask("kv/range", key=text("/")))["header"]["revision"]
        await self.ask("kv/compaction", revision=revision, physical=True)


def text(value: str) -> str:
    """How the JSON gateway has bytes."""
    return b64encode(value.encode()).decode()
