"""What the HTTP link sends, and what it makes of what comes back, against a server of scripted bytes."""

from collections.abc import Awaitable, Callable

import pytest

from gateway.links.base import BadReply, Reply, WorkerLost
from gateway.links.http import HttpLink, HttpReplyStream
from gateway.outbox import Piece
from gateway.spliced_frame import SplicedFrame
from tests.unit.links.exchange import HELLO, HELLO_CHUNKED, PATIENT, Connect, Serve, ask, open_stream
from tests.unit.links.raw_server import LAST_CHUNK, Peer, always, chunked, replying, until

Begin = Callable[[HttpLink], Awaitable[Reply | HttpReplyStream]]


class TestRequest:
    async def test_post_is_one_tagged_frame(self, serve: Serve, connect: Connect) -> None:
        """A POST carries the frame byte for byte, the tag, its length, and the caller's headers."""
        requests = []

        async def script(peer: Peer) -> None:
            requests.append(await peer.request())
            await peer.send(HELLO)

        server = await serve(script)
        await connect(server).call("/v1/completions", b"\x81\xa1a\x01", {"X-Packrelay-Request-Id": "r1"}, PATIENT)

        assert (requests[0].line, requests[0].body) == ("POST /v1/completions HTTP/1.1", b"\x81\xa1a\x01")
        assert requests[0].headers == {
            "host": server.url.removeprefix("http://"),
            "accept-encoding": "identity",
            "content-type": "application/json",
            "x-trtllm-msgpack": "1",
            "content-length": "4",
            "x-packrelay-request-id": "r1",
        }

    async def test_get_has_no_tag_and_no_body(self, serve: Serve, connect: Connect) -> None:
        """A GET says nothing of msgpack."""
        requests = []

        async def script(peer: Peer) -> None:
            requests.append(await peer.request())
            await peer.send(HELLO)

        server = await serve(script)
        reply = await connect(server).get("/health", PATIENT)

        assert (reply.status, reply.body) == (200, b"hello")
        assert requests[0].line == "GET /health HTTP/1.1"
        assert sorted(requests[0].headers) == ["accept-encoding", "host"]

    @pytest.mark.parametrize("spliced", [False, True], ids=["one piece", "pieces"])
    async def test_large_frame_arrives_whole(self, serve: Serve, connect: Connect, spliced: bool) -> None:
        """A frame larger than every socket buffer arrives as it was."""
        frame = bytes(range(256)) * 65536
        part = len(frame) // 3
        pieces: list[Piece] = [
            frame[:5],
            memoryview(frame)[5:part],
            frame[part : part + 5],
            memoryview(frame)[part + 5 :],
        ]
        bodies = []

        async def script(peer: Peer) -> None:
            bodies.append((await peer.request()).body)
            await peer.send(HELLO)

        await connect(await serve(script)).call("/x", SplicedFrame(pieces) if spliced else frame, {}, PATIENT)

        assert bodies == [frame]

    @pytest.mark.parametrize(
        ("url", "target", "host"),
        [
            ("http://worker", "/v1/x", "worker"),
            ("http://worker:8001/", "/v1/x", "worker:8001"),
            ("http://worker:8001/a/b/", "/a/b/v1/x", "worker:8001"),
            ("http://[::1]:8001", "/v1/x", "[::1]:8001"),
            ("https://worker:443", "/v1/x", "worker"),
            ("http://bücher.example:80", "/v1/x", "xn--bcher-kva.example"),
        ],
    )
    def test_url_becomes_target_and_host(self, url: str, target: str, host: str) -> None:
        """The URL's path comes before the operation, and the Host header names the port unless it is the scheme's own."""
        head = HttpLink(url)._post("/v1/x", b"", {})

        assert head.startswith(f"POST {target} HTTP/1.1\r\nHost: {host}\r\n".encode())

    @pytest.mark.parametrize(
        "url",
        [
            "worker:8001",
            "ftp://worker",
            "http://",
            "http://u:p@worker",
            "http://worker/?a",
            "http://worker/#a",
            "http://w:99999",
        ],
    )
    def test_unusable_url_is_refused(self, url: str) -> None:
        """A URL that names no HTTP worker is a ValueError at once."""
        with pytest.raises(ValueError):  # noqa: PT011  # the standard library words some of them
            HttpLink(url)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *[("x", "a\r\nb: c"), ("x", "a\nb"), ("x\r\n", "a"), ("", "a"), ("x y", "a"), ("x", "東"), ("x", "a\0")],
            *[("Content-Length", "0"), ("transfer-encoding", "chunked"), ("X-TRTLLM-Msgpack", "0"), ("Host", "other")],
        ],
    )
    async def test_unsafe_header_is_refused(self, name: str, value: str) -> None:
        """A header that would break the request, or that is the link's own, is a ValueError and nothing is sent."""
        with pytest.raises(ValueError, match="header"):
            await HttpLink("http://127.0.0.1:9").call("/x", b"", {name: value}, PATIENT)

    @pytest.mark.parametrize("path", ["v1", "", "/a b", "/a\r\n", "/é"])
    async def test_unsafe_path_is_refused(self, path: str) -> None:
        """A path that is no request target is a ValueError and nothing is sent."""
        with pytest.raises(ValueError, match="request path"):
            await HttpLink("http://127.0.0.1:9").get(path, PATIENT)


class TestReply:
    @pytest.mark.parametrize(
        "reply",
        [
            HELLO,
            HELLO_CHUNKED,
            b"HTTP/1.1 200 OK\r\n\r\nhello",
            b"HTTP/1.0 200 OK\r\n\r\nhello",
            b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + HELLO,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;name=value\r\nhello\r\n0\r\nTrailer: x\r\n\r\n",
        ],
    )
    async def test_every_delimiting_gives_the_body(self, serve: Serve, connect: Connect, reply: bytes) -> None:
        """Length, chunks and the end of the connection delimit a body; 1xx heads, extensions and trailers do not count."""
        answer = await ask(connect(await serve(replying(reply))))

        assert (answer.status, answer.body) == (200, b"hello")
        assert not {"link", "trailer"} & set(answer.headers)

    async def test_headers_are_lower_case_and_joined(self, serve: Serve, connect: Connect) -> None:
        """Header names are lower case, repeated ones are joined, and the status is the worker's."""
        reply = b"HTTP/1.1 429 Slow\r\nRetry-After: 3\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 0\r\n\r\n"

        answer = await ask(connect(await serve(replying(reply))))

        assert (answer.status, answer.body) == (429, b"")
        assert answer.headers == {"retry-after": "3", "x-a": "1, 2", "content-length": "0"}

    async def test_reply_without_body_is_complete(self, serve: Serve, connect: Connect) -> None:
        """A 204 ends with its head, and the connection can be used again."""
        server = await serve(always(b"HTTP/1.1 204 No Content\r\n\r\n"))
        link = connect(server)

        assert [(await ask(link)).status for _ in range(3)] == [204] * 3
        assert server.connections == 1

    @pytest.mark.parametrize("reply", [HELLO, HELLO_CHUNKED])
    async def test_every_fragmentation_gives_the_same(self, serve: Serve, connect: Connect, reply: bytes) -> None:
        """A reply cut in two at any offset, or sent byte by byte, is the same reply."""
        cuts = [[reply[:at], reply[at:]] for at in range(1, len(reply))]
        cuts.append([reply[at : at + 1] for at in range(len(reply))])

        async def script(peer: Peer) -> None:
            for pieces in cuts:
                await peer.request()
                await peer.send(*pieces)

        link = connect(await serve(script))

        assert [(await ask(link)).body for _ in cuts] == [b"hello"] * len(cuts)

    @pytest.mark.parametrize("reply", [HELLO, HELLO_CHUNKED])
    async def test_death_at_every_offset_is_a_loss(self, serve: Serve, connect: Connect, reply: bytes) -> None:
        """A reply that ends too early, wherever that is, is WorkerLost and never a shorter reply."""
        offsets = iter(range(len(reply)))

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(reply[: next(offsets)])

        link = connect(await serve(script))

        for _ in range(len(reply)):
            with pytest.raises(WorkerLost):
                await ask(link)

    @pytest.mark.parametrize(
        "garbage",
        [
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"<html>hello</html>",
            b"HTTP/7.0 200 OK\r\n\r\n",
            b"HTTP/1.1 abc OK\r\n\r\n",
            b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nBad Header: 5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
        ],
    )
    @pytest.mark.parametrize("begin", [ask, open_stream])
    async def test_garbage_is_a_bad_reply(self, serve: Serve, connect: Connect, garbage: bytes, begin: Begin) -> None:
        """Bytes that are not an HTTP/1.1 reply we asked for are BadReply, and the connection is ended."""
        link = connect(await serve(replying(garbage)))

        with pytest.raises(BadReply):
            await begin(link)
        await until(lambda: link.open_connections == 0)

    async def test_broken_body_is_a_bad_reply(self, serve: Serve, connect: Connect) -> None:
        """A body that breaks the chunked coding is BadReply."""
        link = connect(await serve(replying(HELLO_CHUNKED.removesuffix(LAST_CHUNK) + b"xyz\r\n")))

        with pytest.raises(BadReply):
            await ask(link)

    @pytest.mark.parametrize(
        "reply",
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"x" * 500, b"x" * 501),
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * 600_000,
            b"HTTP/1.1 103 Early\r\n\r\n" * 30_000,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"x" * 600_000,
        ],
    )
    async def test_oversize_is_a_bad_reply(self, serve: Serve, connect: Connect, reply: bytes) -> None:
        """A body beyond the limit, and a head or trailer without end, are BadReply as soon as that is known."""

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(reply)
            await peer.gone()

        link = connect(await serve(script), max_reply_bytes=1000)

        with pytest.raises(BadReply):
            await ask(link)
        await until(lambda: link.open_connections == 0)
