"""A link to a worker that exists only in the test: answers are given by functions, everything asked is recorded."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any

import msgspec

from gateway.fleet import Fleet
from gateway.links.base import Deadlines, LinkError, Reply, ReplyStream, Take
from gateway.member import Role, Worker
from gateway.probing import Probing
from gateway.routing import POLICIES
from gateway.spliced_frame import RequestFrame
from schemas.dialect import PACKRELAY, STOCK
from schemas.openai.models import Model

Answering = Callable[["Asked"], Awaitable["Reply | FakeStream"]]


class Asked(msgspec.Struct):
    """One exchange: what the gateway sent."""

    operation: str
    frame: bytes
    headers: dict[str, str]

    @property
    def body(self) -> dict[str, Any]:
        """The frame, decoded."""
        decoded: dict[str, Any] = msgspec.msgpack.decode(self.frame)
        return decoded


class FakeStream:
    """A reply stream made of given chunks; an exception among them is raised in its turn."""

    def __init__(self, *chunks: bytes | LinkError, status: int = 200, content_type: str = "text/event-stream") -> None:
        self.status = status
        self.headers: Mapping[str, str] = {"content-type": content_type}
        self._chunks = list(chunks)
        self.closed = False
        self.failed = False

    async def read(self) -> bytes:
        chunk = self._chunks.pop(0) if self._chunks else b""
        if isinstance(chunk, LinkError):
            raise chunk
        self.failed = b'data: {"error":' in chunk
        return chunk

    async def pass_on(self, take: Take) -> None:
        """Everything is read."""

    async def body(self) -> bytes:
        return b"".join(chunk for chunk in self._chunks if isinstance(chunk, bytes))

    def close(self) -> None:
        self.closed = True


class FakeLink:
    """Answers every POST with `answering`; `cancelled` counts exchanges that were cancelled while it did."""

    def __init__(self, answering: Answering) -> None:
        self.url = "http://fake"
        self.answering = answering
        self.asked: list[Asked] = []
        self.side_calls: list[Asked] = []
        self.side_reply: Callable[[str], Reply] = lambda _path: Reply(404, {}, b"")
        self.was_asked = asyncio.Event()
        self.cancelled = 0
        self.closed = False

    async def call(
        self, operation: str, frame: RequestFrame, headers: Mapping[str, str], deadlines: Deadlines
    ) -> Reply:
        if operation.startswith("/_packrelay"):
            self.side_calls.append(Asked(operation, bytes(frame), dict(headers)))
            return Reply(200, {}, b"")
        answer = await self._answer(Asked(operation, bytes(frame), dict(headers)))
        assert isinstance(answer, Reply)
        return answer

    async def stream(
        self, operation: str, frame: RequestFrame, headers: Mapping[str, str], deadlines: Deadlines
    ) -> ReplyStream:
        answer = await self._answer(Asked(operation, bytes(frame), dict(headers)))
        if isinstance(answer, Reply):
            return FakeStream(answer.body, status=answer.status, content_type="application/json")
        return answer

    async def get(self, path: str, deadlines: Deadlines) -> Reply:
        return self.side_reply(path)

    async def close(self) -> None:
        self.closed = True

    async def _answer(self, asked: Asked) -> "Reply | FakeStream":
        self.asked.append(asked)
        self.was_asked.set()
        try:
            return await self.answering(asked)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def always(answer: "Reply | FakeStream | LinkError") -> Answering:
    """The same answer to everything."""

    async def answering(_asked: Asked) -> "Reply | FakeStream":
        if isinstance(answer, LinkError):
            raise answer
        return answer

    return answering


def soon(answer: "Reply | FakeStream | LinkError") -> Answering:
    """The same answer to everything, after everybody else had a turn of the event loop."""

    async def answering(asked: Asked) -> "Reply | FakeStream":
        await asyncio.sleep(0)
        return await always(answer)(asked)

    return answering


def in_turn(*answers: "Reply | FakeStream | LinkError") -> Answering:
    """One answer after the other."""
    left = list(answers)

    async def answering(asked: Asked) -> "Reply | FakeStream":
        return await always(left.pop(0))(asked)

    return answering


async def never(_asked: Asked) -> "Reply | FakeStream":
    """No answer, until the exchange is cancelled."""
    await asyncio.Event().wait()
    raise AssertionError


def json_reply(value: Any, status: int = 200, **headers: str) -> Reply:
    """A JSON reply."""
    return Reply(status, {"content-type": "application/json", **headers}, msgspec.json.encode(value))


def msgpack_reply(value: Any) -> Reply:
    """A msgpack reply."""
    return Reply(200, {"content-type": "application/msgpack"}, msgspec.msgpack.encode(value))


def worker(
    answering: Answering = never,
    *,
    role: Role = Role.BOTH,
    index: int = 0,
    model: str = "m",
    engine: str = "scripted",
    stock: bool = False,
    clock: Callable[[], float] | None = None,
) -> tuple[Worker, FakeLink]:
    """A worker that is up, with a fake link."""
    link = FakeLink(answering)
    made = Worker(index, role, link, clock or monotonic)
    made.up = True
    made.models = [Model(id=model)]
    made.engine = "stock" if stock else engine
    made.dialect = STOCK if stock else PACKRELAY
    return made, link


def fleet(*workers: Worker, policy: str = "round_robin") -> Fleet:
    """A fleet of these workers that is not being checked."""
    return Fleet(workers, {role: POLICIES[policy]() for role in Role}, Probing())
