"""The stub's gRPC side: answers made beforehand, through the worker's own channel, so that the writing is the worker's design.

`python -m benchmarks.stub --link grpc` runs this; the options and the answers are those of `benchmarks.stub`.
"""

import argparse
import asyncio
from typing import Final

from benchmarks.bodies import MODEL
from benchmarks.stub import TICK_SECONDS, server_info, whole_answer
from schemas.codec import encode_frame
from schemas.events import Delta, Done, Event, Started
from schemas.openai.usage import usage_of
from schemas.pb.channel_pb2 import Frame
from worker.channel import ChannelServer
from worker.channel_answer import Answering, Sink, reply_frame

_STREAM: Final = b"\xa6stream\xc3"
"""How a frame says that it wants a stream."""
_DELTA: Final = Delta(text=" word", tokens=1)
_STARTED: Final = Started(created=1_700_000_000, prompt_tokens=12)


class Stream:
    """A stream being answered: `write` says the next event, and the last ones with it when they are due."""

    def __init__(self, sink: Sink, events: int) -> None:
        self.ended = asyncio.Event()
        self._sink = sink
        self._left = events
        self._first: list[Event] = [_STARTED]
        self._last: list[Event] = [Done(usage=usage_of(12, events))]

    async def write(self) -> None:
        """One more event."""
        self._left -= 1
        events, self._first = [*self._first, _DELTA], []
        if self._left == 0:
            events += self._last
            self.ended.set()
        await self._sink.events(events)


class Canned(Answering):
    """Answers what the options say, whatever is asked."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._paced: list[Stream] = []
        self._get = {
            "/v1/models": encode_frame(
                {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "bench"}]}
            ),
            "/server_info": encode_frame(server_info(options.kind)),
        }
        self._other = encode_frame({})
        self._whole = encode_frame(whole_answer())

    async def answer(self, frame: Frame, sink: Sink, *, events: bool = True) -> None:
        """One request. Cancelling it ends its stream."""
        if not frame.payload:
            await sink.reply(reply_frame(frame.stream, 200, self._get.get(frame.operation, self._other)))
        elif self._options.answer == "stream" and events and _STREAM in frame.payload:
            await self._stream(Stream(sink, self._options.chunks))
        else:
            await sink.reply(reply_frame(frame.stream, 200, self._whole))

    async def _stream(self, stream: Stream) -> None:
        if not self._options.per_second:
            while not stream.ended.is_set():
                await stream.write()
                await asyncio.sleep(0)  # One event for each turn of the loop, as over HTTP.
            return
        self._paced.append(stream)
        try:
            await stream.ended.wait()
        finally:
            if stream in self._paced:
                self._paced.remove(stream)

    async def pace(self) -> None:
        """Write the paced streams, all at the same moment: one event each in every gap."""
        loop = asyncio.get_running_loop()
        gap = max(1, round(1 / self._options.per_second / TICK_SECONDS)) * TICK_SECONDS
        due = loop.time()
        while True:
            due += gap
            await asyncio.sleep(max(due - loop.time(), 0.0))
            for stream in [*self._paced]:
                await stream.write()
            self._paced = [stream for stream in self._paced if not stream.ended.is_set()]


async def serve(options: argparse.Namespace) -> None:
    """Listen, print the port, serve until killed."""
    answers = Canned(options)
    server = ChannelServer("127.0.0.1", options.port)
    await server.start(answers)
    print(server.port, flush=True)
    async with asyncio.TaskGroup() as tasks:
        if options.per_second:
            tasks.create_task(answers.pace(), name="pace")
        tasks.create_task(asyncio.Event().wait(), name="for-ever")
