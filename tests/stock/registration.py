"""A stock worker's registration, written as stock workers write it."""

import json
from itertools import count
from urllib.parse import urlsplit

from tests.etcd_process import Etcd
from tests.stock.server import StockWorker

ROLES = {"CONTEXT": 0, "GENERATION": 1}
_lives = count(1785542400000)


async def register(etcd: Etcd, worker: StockWorker, role: str, cluster: str = "", seconds: int | None = None) -> str:
    """Write the worker's key, under a lease of so many seconds if given. Answers the key."""
    parts = urlsplit(worker.url)
    worker_id = f"{role}-{parts.hostname}:{parts.port}-{next(_lives)}-7-042"
    value = {"worker_id": worker_id, "host": parts.hostname, "port": parts.port, "role": ROLES[role]}
    key = f"/trtllm-disagg/{cluster}/workers/{worker_id}"
    await etcd.put(key, json.dumps(value), seconds)
    return key
