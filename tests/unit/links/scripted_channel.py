"""A gRPC server that says scripted frames, for tests of what reads them: nothing of our worker's channel is in it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from schemas.codec import encode_frame
from schemas.events import Delta, Done, Event, Started
from schemas.openai.usage import usage_of
from schemas.pb.channel_pb2 import EVENTS, OPEN, REPLY, Frame

STARTED = Started(created=1700000000, prompt_tokens=3)
HELLO = Delta(text="hello", tokens=1)
DONE = Done(usage=usage_of(3, 1))


class Peer:
    """The worker's end of one `Exchange`."""

    def __init__(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        self._requests = requests
        self._context = context

    async def receive(self) -> Frame:
        """The next frame. Raises StopAsyncIteration when the link has ended the rpc."""
        return Frame.FromString(await anext(self._requests))

    async def opened(self) -> int:
        """The number of the next request."""
        frame = await self.receive()
        assert frame.kind == OPEN
        return frame.stream

    async def send(self, frame: Frame) -> None:
        """Send one frame."""
        await self.send_bytes(frame.SerializeToString())

    async def send_bytes(self, message: bytes) -> None:
        """Send one message as it is, frame or not."""
        await self._context.write(message)

    async def events(self, *pairs: tuple[int, Event]) -> None:
        """Send one batch."""
        await self.send(Frame(kind=EVENTS, payload=encode_frame(pairs)))

    async def reply(self, number: int, body: Any, status: int = 200) -> None:
        """Send a whole reply. Any: it becomes msgpack."""
        headers = {"status": str(status), "content-type": "application/msgpack"}
        await self.send(Frame(stream=number, kind=REPLY, headers=headers, payload=encode_frame(body)))

    async def end(self, code: grpc.StatusCode) -> None:
        """End the rpc with this status."""
        await self._context.abort(code, "as the test wants it")

    async def gone(self) -> None:
        """Wait for ever: the link is what ends the rpc."""
        await asyncio.Event().wait()


Script = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def scripted_channel(script: Script, port: int = 0) -> AsyncIterator[str]:
    """The URL of a channel that runs the script for each rpc, and ends the rpc when the script is over."""

    async def exchange(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.send_initial_metadata(())
        try:
            await script(Peer(requests, context))
        except StopAsyncIteration:
            return  # the link has ended its side, which is its right

    # No serializers: bytes in, bytes out.
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Exchange": grpc.stream_stream_rpc_method_handler(exchange)
    }
    server = grpc.aio.server(
        handlers=[grpc.method_handlers_generic_handler("packrelay.v1.Channel", handlers)],
        options=[("grpc.so_reuseport", 0)],
    )
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{bound}"
    finally:
        await server.stop(0)
