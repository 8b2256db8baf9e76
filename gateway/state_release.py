"""Telling a context worker that the state it keeps for a request will not be fetched."""

import asyncio

import structlog

from gateway.links.base import ConnectFailed, Deadlines, LinkError
from gateway.member import Worker
from schemas.abort import AbortRequest
from schemas.codec import encode_frame

ABORT_PATH = "/_packrelay/abort"
_DEADLINES = Deadlines(connect=1, first_byte=10, idle=10, total=12)
"""Over a channel an abort waits behind the frames before it, and is not sent when its time is over: large ones may take some."""
_log = structlog.get_logger(__name__)


class StateRelease:
    """Sends aborts in the background: the request they belong to has ended, often because its client is gone.

    A stock worker has no such call; its state expires there. `patience` is how many seconds `close` waits for those under way.
    """

    def __init__(self, patience: float = 2.0) -> None:
        self._patience = patience
        self._sending: set[asyncio.Task[None]] = set()

    def release(self, worker: Worker, request_id: str) -> None:
        """Let the worker forget the request. Returns at once; a failure is logged, the state then expires by itself."""
        if worker.dialect.stock:
            return
        task = asyncio.create_task(_abort(worker, request_id), name=f"release-{request_id}")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def close(self) -> None:
        """Wait for the aborts under way, and give up those that take too long."""
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=self._patience)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


async def _abort(worker: Worker, request_id: str) -> None:
    try:
        await worker.link.call(ABORT_PATH, encode_frame(AbortRequest(request_id=request_id)), {}, _DEADLINES)
    except ConnectFailed:
        # A process that cannot be reached is nearly always one that is gone, with all that it kept.
        _log.debug("state.not_released", worker=worker.index, request_id=request_id, reason="not reached")
    except LinkError as error:
        _log.warning("state.not_released", worker=worker.index, request_id=request_id, reason=str(error))
