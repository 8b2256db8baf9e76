"""The request and route classes that pick a body's decoder by its header. Always installed: there is no switch.

A body with the header `X-TRTLLM-Msgpack: 1` is msgpack, any other is JSON; an empty one is an empty map. The content type says
nothing (a tagged body keeps `application/json`, trtllm-wire.md 1.1). Everything malformed is a DecodeFailure, which becomes a 400
with the OpenAI error object; what is larger than allowed is a 413, before it is read whole.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, overload

import msgspec
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from schemas.codec import MAX_BODY_BYTES, MSGPACK_HEADER, MSGPACK_HEADER_VALUE, guarded
from schemas.openai.errors import ErrorKind, ServingError

T = TypeVar("T")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]

BODY_SECONDS: Final = 60.0
"""How long a body may take to arrive."""

EMPTY_JSON: Final = b"{}"
EMPTY_MSGPACK: Final = b"\x80"

_json = msgspec.json.Decoder()
_msgpack = msgspec.msgpack.Decoder()


class MsgpackRequest(Request):
    """A request whose body is read by its tag, at most `app.state.max_body_bytes` of it (64 MiB where the app does not say)."""

    @property
    def tagged(self) -> bool:
        """Whether the body is msgpack: the header is there once and is exactly `1`."""
        return self.headers.getlist(MSGPACK_HEADER) == [MSGPACK_HEADER_VALUE]

    async def body(self) -> bytes:
        """The whole body; an empty map in the body's own encoding if there is none. Raises ServingError: too large, or cut off."""
        if not hasattr(self, "_body"):
            self._body = await self._read() or (EMPTY_MSGPACK if self.tagged else EMPTY_JSON)
        return self._body

    async def json(self) -> Any:
        """The body as a value, whichever way it is encoded (the name is FastAPI's). Raises DecodeFailure."""
        if not hasattr(self, "_json"):
            self._json = await self.read(_json.decode, _msgpack.decode)
        return self._json

    @overload
    async def read(self, from_json: Callable[[bytes], T], from_msgpack: Callable[[bytes], T]) -> T: ...
    @overload
    async def read(self, from_json: type[T]) -> T: ...
    async def read(self, from_json: Any, from_msgpack: Any = None) -> Any:
        """The body as one of two decoders reads it, or as a Struct of the type given. Raises DecodeFailure."""
        body = await self.body()
        if from_msgpack is None:
            codec = msgspec.msgpack if self.tagged else msgspec.json
            return guarded(lambda data: codec.decode(data, type=from_json), body)
        return guarded(from_msgpack if self.tagged else from_json, body)

    async def _read(self) -> bytes:
        limit: int = getattr(self.app.state, "max_body_bytes", MAX_BODY_BYTES)
        declared = self.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > limit:
            raise _too_large(limit)
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in self.stream():
                    size += len(chunk)
                    if size > limit:
                        raise _too_large(limit)
                    chunks.append(chunk)
        except TimeoutError as error:
            raise ServingError(ErrorKind.TIMED_OUT_READING, "The body did not arrive in time.") from error
        except ClientDisconnect as error:
            raise ServingError(ErrorKind.CANCELLED, "The client left before its request was read.") from error
        return b"".join(chunks)


class MsgpackRoute(APIRoute):
    """Gives every handler a MsgpackRequest, body parameters of FastAPI included."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def handle_by_tag(request: Request) -> Response:
            try:
                return await handle(MsgpackRequest(request.scope, request.receive))
            except HTTPException as error:
                # FastAPI answers "error parsing the body" for whatever reading a body parameter raised; ours says what is wrong.
                if isinstance(error.__cause__, ServingError):
                    raise error.__cause__ from error
                raise

        return handle_by_tag


def _too_large(limit: int) -> ServingError:
    return ServingError(ErrorKind.TOO_LARGE, f"The request body is larger than {limit} bytes.", code="body_too_large")
