"""What packrelay-up asks the servers it started: are you ready, and what is your model called."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus

import msgspec

ASK_TIMEOUT_S = 2.0
MAX_REPLY_BYTES = 1 << 20


class Unanswered(Exception):
    """Nobody answered on that port in time, or not in HTTP."""


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_Model]


_decode_models = msgspec.json.Decoder(_ModelList).decode


async def get(host: str, port: int, path: str) -> tuple[int, bytes]:
    """Status and body of one GET, within 2 s. Raises Unanswered."""
    request = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: application/json\r\n\r\n"
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            reply = await _exchange(host, port, request.encode("ascii"))
    except (OSError, TimeoutError) as failure:
        raise Unanswered(f"{host}:{port} does not answer: {failure}") from failure
    head, _, body = reply.partition(b"\r\n\r\n")
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise Unanswered(f"{host}:{port} does not speak HTTP.")
    return int(words[1]), body


async def _exchange(host: str, port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        reply = bytearray()
        # HTTP/1.0: the end of the connection is the end of the reply.
        while len(reply) < MAX_REPLY_BYTES and (piece := await reader.read(65536)):
            reply += piece
        return bytes(reply)
    finally:
        writer.close()


async def is_ready(host: str, port: int) -> bool:
    """Whether `/health` answers 200 and `/v1/models` names a model, or keeps its answer for those with a key."""
    try:
        health, _ = await get(host, port, "/health")
        if health != HTTPStatus.OK:
            return False
        status, body = await get(host, port, "/v1/models")
    except Unanswered:
        return False
    return status in _KEY_NEEDED or bool(_models_in(status, body))


async def first_model(servers: Iterable[tuple[str, int]]) -> str | None:
    """The first model that one of the servers names; None when none of them does."""
    for host, port in servers:
        with suppress(Unanswered):
            models = _models_in(*await get(host, port, "/v1/models"))
            if models:
                return models[0].id
    return None


async def wants_key(host: str, port: int) -> bool:
    """Whether `/v1/models` keeps its answer for those with a key."""
    with suppress(Unanswered):
        return (await get(host, port, "/v1/models"))[0] in _KEY_NEEDED
    return False


_KEY_NEEDED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def _models_in(status: int, body: bytes) -> list[_Model]:
    if status != HTTPStatus.OK:
        return []
    with suppress(msgspec.DecodeError):
        return _decode_models(body).data
    return []
