"""One `Exchange` rpc: many requests at once, each in a task of its own. Knows frames but no gRPC."""

import asyncio
from typing import Final

from schemas.codec import MAX_REPLY_BYTES
from schemas.events import Event
from schemas.pb.channel_pb2 import CANCEL, GOAWAY, OPEN, PING, Frame
from worker.channel_answer import Answering
from worker.channel_outbox import Outbox

MAX_PING_BYTES: Final = 64
"""As much of a PING's payload as is sent back."""
CLEAN_UP_SECONDS: Final = 5.0
"""How long the requests of an rpc that has ended may take to abort."""


class ProtocolBroken(Exception):
    """The peer sent frames that make no sense. The message is for it."""


class ChannelRequests:
    """The requests of one rpc. `take` is given every frame; `outbox` has what is to be sent; `close` cancels what is open."""

    def __init__(self, answering: Answering, max_message_bytes: int = MAX_REPLY_BYTES) -> None:
        self.outbox = Outbox(max_message_bytes)
        self._answering = answering
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._last_number = 0

    def take(self, frame: Frame) -> None:
        """Deal with one frame; kinds that are not known here are skipped. Never blocks. Raises ProtocolBroken."""
        if frame.kind == OPEN:
            self._open(frame)
        elif frame.kind == CANCEL:
            request = self._requests.get(frame.stream)
            if request is not None:
                request.cancel()
        elif frame.kind == PING:
            self.outbox.put_signal(Frame(kind=PING, payload=frame.payload[:MAX_PING_BYTES]))

    def go_away(self) -> None:
        """Tell the peer that this worker will end."""
        self.outbox.put_signal(Frame(kind=GOAWAY))

    async def idle(self) -> None:
        """Wait until every request that was opened is answered."""
        while self._requests:
            await asyncio.wait(list(self._requests.values()))

    async def close(self) -> None:
        """Cancel every request and wait, for a while, until they have let go of the engine."""
        requests = list(self._requests.values())
        for request in requests:
            request.cancel()
        if requests:
            await asyncio.wait(requests, timeout=CLEAN_UP_SECONDS)

    def _open(self, frame: Frame) -> None:
        if frame.stream <= self._last_number:
            raise ProtocolBroken("The numbers of requests must grow.")
        self._last_number = number = frame.stream
        answer = self._answering.answer(frame, _Sink(self.outbox, number))
        request = asyncio.create_task(answer, name=f"channel-request-{number}")
        self._requests[number] = request
        request.add_done_callback(lambda _task: self._requests.pop(number, None))


class _Sink:
    """One request's part of the outbox."""

    def __init__(self, outbox: Outbox, number: int) -> None:
        self._outbox = outbox
        self._number = number

    async def events(self, events: list[Event]) -> None:
        await self._outbox.put_events(self._number, events)

    async def reply(self, reply: Frame) -> None:
        await self._outbox.put_reply(reply)
