"""What the tests of the gateway's outside stand on: a backend that does as it is told, and a client that speaks ASGI."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message

from gateway.admission import Admission
from gateway.api.parts import Parts
from gateway.app import create_app
from gateway.auth import ApiKeys
from gateway.call import Answer, Call
from gateway.cli import limits_of
from gateway.config import GatewayConfig
from gateway.door import Door
from gateway.lifecycle import Lifecycle
from gateway.links.base import Take
from gateway.scrape import GatewayCollector, Scrape
from schemas.cluster import ClusterInfo, ServerLists
from schemas.openai.errors import ServingError
from schemas.openai.models import Model

WORKER = ("http://127.0.0.1:1",)
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EVENT = b'data: {"choices":[]}\n\n'
DONE = b"data: [DONE]\n\n"


class FakeStream:
    """A stream of what it is given; after that it ends, or stays silent until it is closed."""

    def __init__(self, *chunks: bytes, silent: bool = False) -> None:
        self.chunks = deque(chunks)
        self.silent = silent
        self.closed = 0
        self.failed = bool(chunks) and not chunks[-1].endswith(b"data: [DONE]\n\n")

    async def read(self) -> bytes:
        """The next chunk."""
        if self.chunks:
            return self.chunks.popleft()
        if self.silent:
            await asyncio.Event().wait()
        return b""

    async def pass_on(self, take: Take) -> None:
        """Everything is read."""

    def close(self) -> None:
        """Counted."""
        self.closed += 1


class EndlessStream(FakeStream):
    """Always has something to read."""

    CHUNK = b"data: " + b"x" * 65536 + b"\n\n"

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    async def read(self) -> bytes:
        """The same again."""
        self.reads += 1
        return self.CHUNK


class FakeBackend:
    """Answers every call with `reply`; while `hold` is set it waits for `release` first. Records what it was asked."""

    def __init__(self, reply: Answer | FakeStream | Exception | None = None) -> None:
        self.reply = reply or Answer(body=b'{"id":"chatcmpl-1"}')
        self.names = ["tiny", "org/large"]
        self.serving = True
        self.hold = False
        self.release = asyncio.Event()
        self.asked = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.calls: list[Call] = []
        self.started = 0
        self.closed = 0

    async def answer(self, call: Call) -> Answer | FakeStream:
        """See the class."""
        self.calls.append(call)
        self.asked.set()
        try:
            if self.hold:
                await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply

    def models(self) -> list[Model]:
        """The models named."""
        return [Model(id=name) for name in self.names]

    def serves(self, model: str) -> bool:
        """Whether it was named."""
        return model in self.names

    def can_serve(self) -> bool:
        """As told."""
        return self.serving

    def cluster(self) -> ClusterInfo:
        """No workers."""
        return ClusterInfo(is_ready=self.serving, server_lists=ServerLists(context=[], generation=[]))

    async def start(self) -> None:
        """Counted."""
        self.started += 1

    async def close(self) -> None:
        """Counted."""
        self.closed += 1


@dataclass
class Response:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON, whatever it is."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object."""
        error: dict[str, Any] = self.json()["error"]
        return error


@dataclass
class Client:
    """One request at a time, straight into an ASGI callable. `leave` is what a client does that closes its connection."""

    door: Door
    messages: list[Message] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    on_message: Callable[[Message], None] | None = None

    def leave(self) -> None:
        """Close the connection."""
        self.gone.set()

    async def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Send a request, and collect the response."""
        pieces = deque([] if body is None else [body[at : at + 65536] for at in range(0, len(body) or 1, 65536)])
        self.messages = []

        async def receive() -> Message:
            if pieces:
                return {"type": "http.request", "body": pieces.popleft(), "more_body": bool(pieces)}
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            self.messages.append(message)
            if self.on_message is not None:
                self.on_message(message)

        await self.door(scope_of(method, path, headers or {}), receive, send)
        return self._response()

    async def post(self, path: str = CHAT, body: Any = None, **headers: str) -> Response:
        """POST a body, as JSON unless it is bytes; header names have underscores here."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) else json.dumps(body if body is not None else chat()).encode()
        sent = {"content-type": "application/json", "content-length": str(len(data))}
        if "transfer-encoding" in named:
            sent.pop("content-length")
        return await self.ask("POST", path, data, sent | named)

    async def get(self, path: str, **headers: str) -> Response:
        """GET a path."""
        return await self.ask("GET", path, None, {name.replace("_", "-"): value for name, value in headers.items()})

    def _response(self) -> Response:
        if not self.messages:
            return Response(0, {}, b"")
        start, *rest = self.messages
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
        return Response(start["status"], headers, b"".join(message.get("body", b"") for message in rest))


def scope_of(method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """An ASGI scope as uvicorn makes it."""
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode("ascii", "replace"),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "server": ("test", 80),
        "client": ("test", 1),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
    }


def chat(**fields: Any) -> dict[str, Any]:
    """A chat body that is accepted, with these fields."""
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]} | fields


@dataclass
class Rig:
    """A gateway without sockets: its parts, and a client in front of it."""

    backend: FakeBackend
    parts: Parts
    door: Door
    client: Client

    @property
    def idle(self) -> bool:
        """Whether nothing is held for any request."""
        admission = self.parts.admission
        return (admission.in_flight, admission.waiting, admission.body_bytes, self.parts.lifecycle.in_flight) == (
            0,
        ) * 4

    def another_client(self) -> Client:
        """A second connection."""
        return Client(self.door)


def rig(reply: Answer | FakeStream | Exception | None = None, keys: ApiKeys | None = None, **settings: Any) -> Rig:
    """A gateway in front of a fake backend, started, with these settings."""
    config = GatewayConfig(worker=WORKER, **settings)
    backend = FakeBackend(reply)
    lifecycle = Lifecycle(backend.can_serve, config.grace)
    parts = Parts(config=config, backend=backend, admission=Admission(limits_of(config)), lifecycle=lifecycle)
    collector = GatewayCollector(parts.metrics, parts.admission, tuple, lambda: 0, lambda: 0)
    door = Door(create_app(parts, Scrape(collector)), parts, keys or ApiKeys())
    lifecycle.start()
    return Rig(backend, parts, door, Client(door))


async def turns(count: int = 20) -> None:
    """Let every task run that can, and those it wakes."""
    for _ in range(count):
        await asyncio.sleep(0)


def error_reply(error: ServingError) -> dict[str, Any]:
    """The error object a client gets for this failure."""
    body = error.body().error
    return {"message": body.message, "type": body.type, "param": body.param, "code": body.code}


class RecordingTransport(asyncio.Transport):
    """Keeps what it is given to write."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Kept."""
        self.written += data

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self.closing

    def close(self) -> None:
        """Noted."""
        self.closing = True

    def get_write_buffer_size(self) -> int:
        """The kernel takes everything."""
        return 0
