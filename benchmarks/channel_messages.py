"""`python -m benchmarks.channel_messages` counts the gRPC messages that a token takes, by how many streams there are.

The worker writes everything that is ready as one message, so the more streams there are, the less a token takes. The streams have
128 tokens each, paced at one a millisecond, and flat out; the stub is a process of its own, and this one only counts.
"""

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Final

import uvloop

from benchmarks.bodies import MODEL
from benchmarks.contenders import ROOT
from benchmarks.record import record
from gateway.links.base import Deadlines
from gateway.links.grpc import GrpcLink
from gateway.links.read_window import ReadWindow
from schemas.codec import encode_frame
from schemas.events import Delta

STREAMS: Final = (1, 4, 16, 64, 256)
TOKENS: Final = 128
PACES: Final = {"paced": ("--per-second", "1000"), "flat out": ()}
_FRAME: Final = encode_frame({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True})


def main(arguments: list[str] | None = None) -> int:
    """0 if every stream was complete and, but for a smoke run, many paced streams took fewer messages a token than one."""
    parser = argparse.ArgumentParser(prog="benchmarks.channel_messages", description="Messages a token takes.")
    parser.add_argument("--smoke", action="store_true", help="only the fewest and the most streams, and no file")
    smoke = parser.parse_args(arguments).smoke
    counts = (STREAMS[0], STREAMS[-1]) if smoke else STREAMS
    found = uvloop.run(_ask(counts))
    for pace, by_streams in found.items():
        shown = "   ".join(f"{streams}: {messages:.4f}" for streams, messages in by_streams.items())
        print(f"messages a token, {pace}, by streams   {shown}")
    if smoke:
        return 0
    path = record("python -m benchmarks.channel_messages", {"grpcio": version("grpcio")}, {"messages_a_token": found})
    print(f"Written to {path}.")
    paced = found["paced"]
    return 0 if paced[str(counts[-1])] < paced[str(counts[0])] else 1


async def _ask(counts: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """By pace, and by how many streams there are. In one loop: gRPC's library has one for a process."""
    found: dict[str, dict[str, float]] = {}
    for pace, options in PACES.items():
        found[pace] = {}
        for streams in counts:
            with _stub(options) as port:
                found[pace][str(streams)] = await _count(port, streams)
    return found


async def _count(port: int, streams: int) -> float:
    async with GrpcLink(f"grpc://127.0.0.1:{port}", window=ReadWindow(0)) as link:
        await link.get("/health", Deadlines())
        exchange = link.exchange
        if exchange is None:
            raise RuntimeError("The channel has ended.")
        before = exchange.messages
        tokens = sum(await asyncio.gather(*(_tokens(link) for _ in range(streams))))
        if tokens != streams * TOKENS:
            raise RuntimeError(f"{tokens} tokens came where {streams * TOKENS} were due.")
        return (exchange.messages - before) / tokens


async def _tokens(link: GrpcLink) -> int:
    async with await link.events("/v1/chat/completions", _FRAME) as events:
        return sum([event.tokens async for event in events if isinstance(event, Delta)])


@contextmanager
def _stub(pace: tuple[str, ...]) -> Iterator[int]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.stub",
        "--link",
        "grpc",
        "--answer",
        "stream",
        "--chunks",
        str(TOKENS),
        *pace,
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline() if process.stdout else "")
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
