"""A worker that costs next to nothing: it reads a request to its end and answers bytes made beforehand.

    python -m benchmarks.stub --kind packrelay --answer whole

Prints its port on a line of its own once it listens. `--kind packrelay` identifies itself as ours, with the deferred form;
`--kind stock` as a server that is not. What a POST is answered is the same for every request:

    whole      a small chat completion
    stream     `--chunks` SSE events: back to back, one write for each turn of the loop, or `--per-second` of them
    context    what a context leg answers, with `--ids` prompt ids (`--ids-form`: integers or base64 in msgpack, integers in JSON)
"""

import argparse
import asyncio
import re
from base64 import b64encode
from time import monotonic_ns
from typing import Any, Final

import msgspec
import uvloop

from benchmarks.bodies import MODEL

STAMP: Final = b'"system_fingerprint":"at='
"""Stands before the time an event was written, 19 digits of CLOCK_MONOTONIC in nanoseconds."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNK: Final = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)
_STAMPED: Final = _CHUNK.replace(b',"model"', b',"system_fingerprint":"at=%019d","model"')
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_DONE: Final = b"data: [DONE]\n\n"
TICK_SECONDS: Final = 0.001


def whole_answer() -> dict[str, Any]:
    """A chat completion."""
    usage = {"prompt_tokens": 12, "completion_tokens": 4, "total_tokens": 16}
    message = {"role": "assistant", "content": "Hello to the world."}
    return {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
    }


def server_info(kind: str) -> dict[str, Any]:
    """What /server_info says."""
    info: dict[str, Any] = {"model_path": MODEL, "model_id": MODEL, "served_model_name": MODEL}
    if kind == "packrelay":
        ours = {"frames": 1, "deferred": True, "grpc_port": None, "model": MODEL, "engine": "stub", "version": "0"}
        info["packrelay"] = ours
    return info


def context_answer(ids: int, form: str) -> dict[str, Any]:
    """What a context leg answers: one token made, to be continued, and the prompt's ids."""
    answer = whole_answer()
    answer["choices"][0] |= {
        "finish_reason": "length",
        "disaggregated_params": {
            "request_type": "context_only",
            "first_gen_tokens": [42],
            "ctx_request_id": 7,
            "disagg_request_id": 7,
            "encoded_opaque_state": b64encode(bytes(range(200))).decode("ascii"),
        },
    }
    tokens = [(index * 7919) % 120_000 for index in range(ids)]
    if form != "base64":
        answer["prompt_token_ids"] = tokens
    else:
        packed = b"".join(token.to_bytes(4, "little") for token in tokens)
        answer["prompt_token_ids_b64"] = b64encode(packed).decode("ascii")
    return answer


def _response(body: bytes, content_type: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (content_type, len(body))
    return head + body


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Pace:
    """One timer for every paced stream: each has its place in a wheel that turns once per gap between two events."""

    def __init__(self, per_second: float) -> None:
        self._wheel: list[list[Connection]] = [[] for _ in range(max(1, round(1 / per_second / TICK_SECONDS)))]
        self._next = 0
        self._joined = 0
        self._due = 0.0

    def start(self) -> None:
        """Begin to turn."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + TICK_SECONDS
        loop.call_at(self._due, self._tick)

    def join(self, stream: "Connection") -> None:
        """Give a stream the next place, so that places fill evenly."""
        self._joined += 7  # No multiple of the wheel's size: neighbours in time do not share a place.
        self._wheel[self._joined % len(self._wheel)].append(stream)

    def _tick(self) -> None:
        place = self._wheel[self._next]
        self._next = (self._next + 1) % len(self._wheel)
        place[:] = [stream for stream in place if stream.write_stamped()]
        self._due += TICK_SECONDS
        asyncio.get_running_loop().call_at(self._due, self._tick)


class Answers:
    """What this process answers, as bytes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.chunks: int = options.chunks
        self.streams = options.answer == "stream"
        self.pace = Pace(options.per_second) if options.per_second else None
        self.post = _response(msgspec.json.encode(whole_answer()))
        if options.answer == "context":
            answer = context_answer(options.ids, options.ids_form)
            if options.ids_form == "json":
                self.post = _response(msgspec.json.encode(answer))
            else:
                self.post = _response(msgspec.msgpack.encode(answer), b"application/msgpack")
        model = {"id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "bench"}
        models = {"object": "list", "data": [model]}
        self.get = {
            b"/v1/models": _response(msgspec.json.encode(models)),
            b"/version": _response(b'{"version":"1.2.0"}'),
            b"/server_info": _response(msgspec.json.encode(server_info(options.kind))),
        }
        self.other = _response(b"{}")


class Connection(asyncio.Protocol):
    """One client, one request at a time."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._path = b""
        self._missing = 0  # Bytes of the body that are still to come.
        self._left = 0  # Events of the stream that are still to be written.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's do not derive from asyncio's

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  the contract's argument
        self._transport = None

    def data_received(self, data: bytes) -> None:
        if self._missing:
            self._missing -= len(data)
        else:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._head, 0, end)
            self._path = self._head.split(b" ", 2)[1] if self._head.startswith(b"GET") else b""
            self._missing = (int(length[1]) if length else 0) - (len(self._head) - end - 4)
            self._head = b""
        if self._missing <= 0:
            self._missing = 0
            self._answer()

    def _answer(self) -> None:
        answers, transport = self._answers, self._transport
        if transport is None:
            return
        if self._path:
            transport.write(answers.get.get(self._path, answers.other))
        elif not answers.streams:
            transport.write(answers.post)
        else:
            transport.write(_STREAM_HEAD)
            self._left = answers.chunks
            if answers.pace is not None:
                answers.pace.join(self)
            else:
                asyncio.get_running_loop().call_soon(self._write_next)

    def _write_next(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._left:
            self._left -= 1
            self._transport.write(_PLAIN_CHUNK)
            asyncio.get_running_loop().call_soon(self._write_next)
        else:
            self._transport.write(_chunked(_DONE) + b"0\r\n\r\n")

    def write_stamped(self) -> bool:
        """The next event of a paced stream, with the time in it; says whether another is to follow."""
        if self._transport is None or self._transport.is_closing():
            return False
        self._left -= 1
        self._transport.write(_chunked(_STAMPED % monotonic_ns()))
        if self._left > 0:
            return True
        self._transport.write(_chunked(_DONE) + b"0\r\n\r\n")
        return False


_PLAIN_CHUNK: Final = _chunked(_CHUNK)


async def _serve(options: argparse.Namespace) -> None:
    answers = Answers(options)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answers), "127.0.0.1", options.port, backlog=4096)
    if answers.pace is not None:
        answers.pace.start()
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main(arguments: list[str] | None = None) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="benchmarks.stub", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--link", choices=["http", "grpc"], default="http")
    parser.add_argument("--kind", choices=["packrelay", "stock"], default="stock")
    parser.add_argument("--answer", choices=["whole", "stream", "context"], default="whole")
    parser.add_argument("--chunks", type=int, default=128)
    parser.add_argument("--per-second", type=float, default=0.0)
    parser.add_argument("--ids", type=int, default=12)
    parser.add_argument("--ids-form", choices=["integers", "base64", "json"], default="integers")
    options = parser.parse_args(arguments)
    if options.link == "grpc":
        from benchmarks.channel_stub import serve

        uvloop.run(serve(options))
    else:
        uvloop.run(_serve(options))


if __name__ == "__main__":
    main()
