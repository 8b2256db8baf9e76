"""Requests as a case wants them sent: by a plain client, or byte by byte over a socket of one's own."""

import http.client
import json
import re
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from tests.contract.conformance.case import Filling

PATIENCE = 60.0
"""Seconds until an answer is given up."""
QUIET = 0.3
"""Seconds without another byte after which an answer on an open connection is complete."""


class Answer(msgspec.Struct, frozen=True):
    """What came back. `raw` is everything that was read, `closed` whether the server ended the connection (raw requests only)."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    raw: bytes = b""
    closed: bool = False

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def events(self) -> list[str]:
        """The data of each record of a stream."""
        blocks = re.split(r"\r?\n\r?\n", self.body.decode())
        return [block.removeprefix("data:").strip() for block in blocks if block.startswith("data:")]

    def chunks(self) -> list[dict[str, Any]]:
        """The records of a stream without its terminal."""
        return [json.loads(event) for event in self.events() if event != "[DONE]"]


class Client:
    """Speaks to one process, with a key."""

    def __init__(self, url: str, filling: Filling) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._filling = filling

    def send(self, request: dict[str, Any]) -> Answer:
        """Send a request of either kind."""
        raw = request.get("raw")
        if raw is None:
            return self._plain(request)
        return self._given_up(raw) if "connect_send" in raw else self._raw(raw)

    def _plain(self, request: dict[str, Any]) -> Answer:
        headers = {"Authorization": f"Bearer {self._filling.key}"} | self._filling.fill(request.get("headers", {}))
        body = self._filling.body(request.get("body"))
        connection = http.client.HTTPConnection(*self._address, timeout=PATIENCE)
        try:
            path = quote(self._filling.fill(request["path"]), safe="/?&=%:+,;@")
            connection.putrequest(request["method"], path, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value.encode("latin-1", "replace"))
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders()
            _send(connection.sock, body or b"")
            response = connection.getresponse()
            return Answer(response.status, _named(response.getheaders()), response.read())
        finally:
            connection.close()

    def _raw(self, raw: dict[str, Any]) -> Answer:
        with socket.create_connection(self._address, timeout=PATIENCE) as connection:
            _send(connection, self._bytes(raw, "send"))
            for byte in self._bytes(raw, "drip"):
                _send(connection, bytes([byte]))
            received, closed = _received(connection)
        return _parsed(received, closed)

    def _bytes(self, raw: dict[str, Any], name: str) -> bytes:
        body = b"" if raw.get("json") is None else json.dumps(self._filling.fill(raw["json"])).encode()
        text = raw.get(name, "").replace("$LEN", str(len(body))).replace("$KEY", self._filling.key)
        return bytes(text.encode("latin-1", "replace").replace(b"$BODY", body))

    def _given_up(self, raw: dict[str, Any]) -> Answer:
        """Send a request, read a little, and leave."""
        asked = raw["connect_send"]
        body = json.dumps(self._filling.fill(asked["json"])).encode()
        head = [
            f"POST {asked['path']} HTTP/1.1",
            "Host: h",
            "Content-Type: application/json",
            f"Authorization: Bearer {self._filling.key}",
            f"Content-Length: {len(body)}",
        ]
        with socket.create_connection(self._address, timeout=PATIENCE) as connection:
            connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
            received = connection.recv(raw["read_bytes"]) if raw["read_bytes"] else b""
        return _parsed(received, closed=True)


def _send(connection: socket.socket, data: bytes) -> None:
    """A server may refuse a body before it has read it."""
    try:
        connection.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return


def _received(connection: socket.socket) -> tuple[bytes, bool]:
    """All that comes, and whether the server closed the connection."""
    received = b""
    while True:
        try:
            piece = connection.recv(65536)
        except TimeoutError:
            return received, False
        except ConnectionResetError:
            return received, True
        if not piece:
            return received, True
        received += piece
        if b"\r\n\r\n" in received:
            connection.settimeout(QUIET)


def _parsed(received: bytes, closed: bool) -> Answer:
    head, _, body = received.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    found = re.match(r"HTTP/1\.\d (\d+)", status)
    pairs = [tuple(line.partition(": ")[::2]) for line in lines]
    return Answer(int(found.group(1)) if found else 0, _named(pairs), body, received, closed)


def _named(pairs: Any) -> dict[str, str]:
    """Headers by lower-case name. Any: pairs of whatever makes them."""
    return {name.lower(): value for name, value in pairs}
