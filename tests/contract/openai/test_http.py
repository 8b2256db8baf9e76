"""HTTP as the gateway speaks it to clients: every refusal is the error object, every answer has an id, every framing is read."""

import gzip
import json
import socket
import zlib
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import httpx2
import msgspec
import pytest
from backports import zstd

from tests.contract.conftest import GatewayUrl
from tests.contract.material import validator
from tests.contract.openai.conftest import CHAT
from tests.e2e.local_fleet import local_fleet, two_legs
from tests.stock import StockWorker

BODY = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}).encode()
STREAMED = BODY[:-1] + b', "stream": true}'
JSON = "Content-Type: application/json"
CLOSE = "Connection: close"


class Raw(msgspec.Struct, frozen=True):
    """One response as it came over the socket: status, headers by lower-case name, and what follows them."""

    status: int
    headers: dict[str, str]
    rest: bytes


def parsed(received: bytes) -> Raw:
    """The first response of what was received."""
    head, _, rest = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Raw(int(first.split(" ")[1]), headers, rest)


class Socket:
    """Sends bytes to a gateway and reads until it closes the connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)

    def send(self, *head: str, body: bytes = b"") -> bytes:
        """Everything that is answered."""
        with socket.create_connection(self._address, timeout=20) as connection:
            connection.sendall("\r\n".join([*head, "", ""]).encode("latin-1") + body)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def ask(self, method: str, path: str, *head: str, body: bytes = b"") -> Raw:
        """The answer to one request."""
        return parsed(self.send(f"{method} {path} HTTP/1.1", "Host: h", CLOSE, *head, body=body))


@pytest.fixture(scope="module")
def gateway() -> Iterator[Socket]:
    """A gateway in front of two legs."""
    with local_fleet(*two_legs("scripted")) as fleet:
        yield Socket(fleet.url)


def length(body: bytes) -> str:
    """The header that says how long a body is."""
    return f"Content-Length: {len(body)}"


REFUSALS: dict[str, tuple[int, tuple[str, ...]]] = {
    "no such path": (404, ("GET /nope HTTP/1.1", "Host: h", CLOSE)),
    "no such model": (404, ("GET /v1/models/nope HTTP/1.1", "Host: h", CLOSE)),
    "another case": (404, ("GET /V1/models HTTP/1.1", "Host: h", CLOSE)),
    "an inner path": (404, ("GET /_packrelay/abort HTTP/1.1", "Host: h", CLOSE)),
    "embeddings": (404, ("POST /v1/embeddings HTTP/1.1", "Host: h", CLOSE, "Content-Length: 0")),
    "responses": (404, ("POST /v1/responses HTTP/1.1", "Host: h", CLOSE, "Content-Length: 0")),
    "wrong method": (405, (f"GET {CHAT} HTTP/1.1", "Host: h", CLOSE)),
    "a proxy's method": (405, ("CONNECT elsewhere:1 HTTP/1.1", "Host: h")),
    "no length": (411, (f"POST {CHAT} HTTP/1.1", "Host: h", CLOSE, JSON)),
    "too large": (413, (f"POST {CHAT} HTTP/1.1", "Host: h", CLOSE, JSON, "Content-Length: 999999999")),
    "no JSON": (415, (f"POST {CHAT} HTTP/1.1", "Host: h", CLOSE, "Content-Type: text/plain", "Content-Length: 2")),
    "msgpack": (
        415,
        (f"POST {CHAT} HTTP/1.1", "Host: h", CLOSE, "Content-Type: application/msgpack", "Content-Length: 2"),
    ),
    "tagged": (400, (f"POST {CHAT} HTTP/1.1", "Host: h", CLOSE, JSON, "X-TRTLLM-Msgpack: 1", "Content-Length: 2")),
    "brotli": (415, (f"POST {CHAT} HTTP/1.1", "Host: h", CLOSE, JSON, "Content-Encoding: br", "Content-Length: 2")),
    "empty body": (400, (f"POST {CHAT} HTTP/1.1", "Host: h", CLOSE, JSON, "Content-Length: 0")),
    "two lengths": (400, (f"POST {CHAT} HTTP/1.1", "Host: h", JSON, "Content-Length: 2", "Content-Length: 3")),
    "length and chunks": (
        400,
        (f"POST {CHAT} HTTP/1.1", "Host: h", JSON, "Content-Length: 2", "Transfer-Encoding: chunked"),
    ),
    "no host": (400, ("GET /v1/models HTTP/1.1",)),
    "no HTTP": (400, ("\x16\x03\x01",)),
    "large head": (431, ("GET /v1/models HTTP/1.1", "Host: h", f"X-A: {'a' * 70_000}")),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal_is_the_error_object_with_an_id(gateway: Socket, name: str) -> None:
    """Whoever refuses a request, and however early: status, error object, and an id to ask after."""
    status, head = REFUSALS[name]
    answer = parsed(gateway.send(*head))

    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    assert validator("ErrorResponse").is_valid(json.loads(answer.rest))
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/version"])
def test_head_is_get_without_a_body(gateway: Socket, path: str) -> None:
    """The same headers, and nothing after them."""
    head, got = gateway.ask("HEAD", path), gateway.ask("GET", path)

    assert (head.status, head.rest) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]


@pytest.mark.parametrize(("path", "methods"), [(CHAT, "POST"), ("/v1/models", "GET"), ("*", "GET")])
def test_options_names_the_methods(gateway: Socket, path: str, methods: str) -> None:
    """What a path takes, or the whole server; nothing for browsers while no origin is let in."""
    answer = gateway.ask("OPTIONS", path, "Origin: https://chat.example", "Access-Control-Request-Method: POST")

    assert answer.status == 204
    assert methods in answer.headers["allow"]
    assert not any(name.startswith("access-control") for name in answer.headers)


async def test_listed_origin_may_call(gateway_url: GatewayUrl) -> None:
    """Only listed origins are let in: before the request, and in its answer, refusals included."""
    async with StockWorker() as worker:
        url = await gateway_url(worker=(worker.url,), cors_origin=("https://chat.example",))
        async with httpx2.AsyncClient(base_url=url) as http:
            asked = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST"}
            allowed = [await http.options(CHAT, headers=asked), await http.post(CHAT, headers=asked, json={})]
            other = await http.options(CHAT, headers=asked | {"Origin": "https://evil.example"})

    assert {reply.headers["access-control-allow-origin"] for reply in allowed} == {"https://chat.example"}
    assert "access-control-allow-origin" not in other.headers


def test_chunked_body_is_read(gateway: Socket) -> None:
    """Chunk by chunk, with extensions and a trailer."""
    chunks = (
        b"".join(b"%x;a=b\r\n%b\r\n" % (len(part), part) for part in (BODY[:7], BODY[7:]))
        + b"0\r\nX-Trailer: 1\r\n\r\n"
    )

    assert gateway.ask("POST", CHAT, JSON, "Transfer-Encoding: chunked", body=chunks).status == 200


def test_expectation_is_met(gateway: Socket) -> None:
    """A client that waits for leave to send its body gets it."""
    received = gateway.send(
        f"POST {CHAT} HTTP/1.1", "Host: h", CLOSE, JSON, length(BODY), "Expect: 100-continue", body=BODY
    )

    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_pipelined_requests_are_answered_in_order(gateway: Socket) -> None:
    """The second answer comes after the end of the first, also when that is a stream."""
    second = f"GET /v1/models HTTP/1.1\r\nHost: h\r\n{CLOSE}\r\n\r\n".encode()
    received = gateway.send(f"POST {CHAT} HTTP/1.1", "Host: h", JSON, length(STREAMED), body=STREAMED + second)

    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert received.index(b"data: [DONE]") < received.index(b'"object":"list"')


@pytest.mark.parametrize("body", [BODY, STREAMED], ids=["whole", "stream"])
def test_older_http_gets_no_chunks(gateway: Socket, body: bytes) -> None:
    """HTTP/1.0 reads to the end of the connection."""
    answer = parsed(gateway.send(f"POST {CHAT} HTTP/1.0", JSON, length(body), body=body))

    assert answer.status == 200
    assert "transfer-encoding" not in answer.headers
    assert answer.rest.endswith(b"}" if body == BODY else b"data: [DONE]\n\n")


ENCODERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}


@pytest.mark.parametrize("coding", ENCODERS)
def test_compressed_body_is_read(gateway: Socket, coding: str) -> None:
    """In every coding that is named in Accept-Encoding."""
    body = ENCODERS[coding](BODY)

    assert gateway.ask("POST", CHAT, JSON, length(body), f"Content-Encoding: {coding}", body=body).status == 200


@pytest.mark.parametrize("coding", ENCODERS)
def test_compressed_body_is_bounded(gateway: Socket, coding: str) -> None:
    """What would become larger than a body may be is a 413."""
    body = ENCODERS[coding](bytes((64 << 20) + 1))

    assert gateway.ask("POST", CHAT, JSON, length(body), f"Content-Encoding: {coding}", body=body).status == 413


@pytest.mark.parametrize(
    ("sent", "echoed"), [("abc-123", True), ("a b", False), ("", False), ("a" * 200, False), ("caf\xe9", False)]
)
def test_id_of_the_client_comes_back_if_it_is_one(gateway: Socket, sent: str, echoed: bool) -> None:
    """What may not stand in a header or a log is replaced."""
    answered = gateway.ask("GET", "/v1/models", f"X-Request-ID: {sent}").headers["x-request-id"]

    assert (answered == sent) is echoed
    assert answered.isascii()


def test_unknown_fields_are_named_safely(gateway: Socket) -> None:
    """Plain names are listed in a header, others are only counted."""
    body = BODY[:-1] + b', "zebra": 1, "a\\r\\nX-Evil: 1": 2, "": 3, "\xc3\xa9": 4}'
    answer = gateway.ask("POST", CHAT, JSON, length(body), body=body)

    assert (answer.status, answer.headers["x-packrelay-ignored-fields"]) == (200, "zebra, and 3 more")
    assert "x-evil" not in answer.headers
