"""The route class that picks a body's decoder by its header, on the server's side."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, get_type_hints

import httpx2
import msgspec
import pytest
from fastapi import Body, FastAPI
from starlette.responses import Response

from worker import error_replies
from worker.metrics import Counters
from worker.msgpack_route import MsgpackRequest, MsgpackRoute

TAGGED = {"X-TRTLLM-Msgpack": "1", "Content-Type": "application/json"}
PLAIN = {"Content-Type": "application/json"}
LIMIT = 64

MAP = {"a": 1, "é": [None, True, 2**63]}
JSON = '{"a": 1, "é": [null, true, 9223372036854775808]}'.encode()
MSGPACK = msgspec.msgpack.encode(MAP)

MALFORMED_MSGPACK = {
    "truncated": b"\x82\xa1a\x01",
    "trailing": b"\x80\x80",
    "reserved": b"\xc1",
    "json": b'{"a": 1}',
    "invalid utf-8": b"\x81\xa1\xff\x01",
    "nested": b"\x91" * 100_000,
}
MALFORMED_JSON = {
    "truncated": b'{"a": 1',
    "trailing": b"{} {}",
    "msgpack": MSGPACK,
    "invalid utf-8": b'{"a": "\xff"}',
    "nested": b"[" * 100_000,
    "a number beyond doubles": b'{"a": 1e999}',
}


class Named(msgspec.Struct):
    """A body with a type."""

    name: str


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def app(counters: Counters) -> FastAPI:
    """Routes that answer what they read, as JSON."""
    app = FastAPI()
    app.router.route_class = MsgpackRoute
    error_replies.install(app, counters)

    @app.post("/value")
    async def value(request: MsgpackRequest) -> Response:
        return Response(msgspec.json.encode(await request.json()))

    @app.post("/named")
    async def named(request: MsgpackRequest) -> Response:
        return Response(msgspec.json.encode(await request.read(Named)))

    @app.post("/parameter")
    async def parameter(body: Annotated[dict[str, Any], Body()]) -> Response:
        return Response(msgspec.json.encode(body))

    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://worker") as client:
        yield client


class TestDecoders:
    @pytest.mark.parametrize("path", ["/value", "/parameter"])
    @pytest.mark.parametrize(("headers", "body"), [(PLAIN, JSON), (TAGGED, MSGPACK)], ids=["json", "msgpack"])
    async def test_the_tag_alone_picks_the_decoder(
        self, client: httpx2.AsyncClient, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        """A tagged body is msgpack and an untagged one JSON, whether a handler reads it or FastAPI does."""
        response = await client.post(path, headers=headers, content=body)

        assert msgspec.json.decode(response.content) == MAP

    @pytest.mark.parametrize("value", ["0", "true", "", "11"])
    async def test_another_value_of_the_header_is_no_tag(self, client: httpx2.AsyncClient, value: str) -> None:
        """Only the value 1 means msgpack; with any other the body is JSON."""
        response = await client.post("/value", headers={**PLAIN, "X-TRTLLM-Msgpack": value}, content=JSON)

        assert msgspec.json.decode(response.content) == MAP

    async def test_a_header_given_twice_is_no_tag(self, client: httpx2.AsyncClient) -> None:
        """Two values of the tag are not the value 1."""
        headers = [("X-TRTLLM-Msgpack", "1"), ("X-TRTLLM-Msgpack", "1")]

        response = await client.post("/value", headers=headers, content=JSON)

        assert msgspec.json.decode(response.content) == MAP

    @pytest.mark.parametrize("headers", [PLAIN, TAGGED], ids=["json", "msgpack"])
    async def test_an_empty_body_is_an_empty_map(self, client: httpx2.AsyncClient, headers: dict[str, str]) -> None:
        """No body reads as a map without entries, in either encoding."""
        response = await client.post("/value", headers=headers)

        assert response.content == b"{}"

    @pytest.mark.parametrize("headers", [PLAIN, TAGGED], ids=["json", "msgpack"])
    async def test_an_empty_map_lacks_its_fields(self, client: httpx2.AsyncClient, headers: dict[str, str]) -> None:
        """Where a field is required, an empty body is a 400 that names it."""
        response = await client.post("/named", headers=headers)

        assert (response.status_code, response.json()["error"]["param"]) == (400, "name")


def malformed() -> Iterator[Any]:
    """Every way to be malformed, with the header that makes it so."""
    for headers, bodies in ((TAGGED, MALFORMED_MSGPACK), (PLAIN, MALFORMED_JSON)):
        for name, body in bodies.items():
            yield pytest.param(headers, body, id=f"{'msgpack' if headers is TAGGED else 'json'} {name}")


class TestFailures:
    @pytest.mark.parametrize(("headers", "body"), list(malformed()))
    @pytest.mark.parametrize("path", ["/value", "/parameter"])
    async def test_a_malformed_body_is_a_400(
        self, client: httpx2.AsyncClient, counters: Counters, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        """Whatever is wrong with a body, the answer is a 400 with the OpenAI object, and it is counted."""
        response = await client.post(path, headers=headers, content=body)

        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert counters.decode_failures == 1

    @pytest.mark.parametrize(
        ("headers", "body"),
        [(PLAIN, b'{"name": 5}'), (TAGGED, msgspec.msgpack.encode({"name": 5}))],
        ids=["json", "msgpack"],
    )
    async def test_a_wrong_type_names_the_field(
        self, client: httpx2.AsyncClient, headers: dict[str, str], body: bytes
    ) -> None:
        """Both decoders say which field is wrong."""
        response = await client.post("/named", headers=headers, content=body)

        assert response.status_code == 400
        assert response.json()["error"]["param"] == "name"


class TestLimit:
    @pytest.fixture(autouse=True)
    def limit(self, app: FastAPI) -> None:
        app.state.max_body_bytes = LIMIT

    async def test_a_body_of_the_limit_is_read(self, client: httpx2.AsyncClient) -> None:
        """The limit itself is allowed."""
        response = await client.post("/value", content=b" " * (LIMIT - 2) + b"{}")

        assert response.status_code == 200

    async def test_a_declared_size_beyond_the_limit_is_refused_unread(self, client: httpx2.AsyncClient) -> None:
        """A body whose Content-Length is too large is a 413, and the connection is not used again."""
        response = await client.post("/value", content=b" " * (LIMIT + 1))

        assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
        assert response.headers["connection"] == "close"

    async def test_a_body_that_grows_beyond_the_limit_is_refused(self, client: httpx2.AsyncClient) -> None:
        """Without a declared size, reading stops with a 413 as soon as there is too much."""
        taken = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal taken
            while True:
                taken += 1
                yield b" " * 16

        response = await client.post("/value", content=endless())

        assert response.status_code == 413
        assert taken <= LIMIT // 16 + 2


def test_the_classes_say_what_they_return() -> None:
    """Every public method of the two classes has a return annotation that resolves."""
    methods = [
        MsgpackRequest.body,
        MsgpackRequest.json,
        MsgpackRequest.read,
        MsgpackRoute.get_route_handler,
    ]

    assert all("return" in get_type_hints(method) for method in methods)
    assert get_type_hints(MsgpackRequest.body)["return"] is bytes
