"""HTTP on real sockets: what clients send that is not quite the usual, and clients that go away."""

import asyncio
import json

import pytest

from gateway.protocol import MAX_HEAD_BYTES
from tests.unit.gateway_fakes import CHAT, DONE, EVENT, EndlessStream, FakeStream, chat
from tests.unit.gateway_sockets import connected, listening, post

BODY = json.dumps(chat()).encode()
STREAMED = json.dumps(chat(stream=True)).encode()
HEALTH = b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


def status_of(response: bytes) -> int:
    """The status of a response's bytes."""
    return int(response.split(b" ", 2)[1])


def error_of(response: bytes) -> str:
    """The message of a response's error object."""
    message: str = json.loads(response.partition(b"\r\n\r\n")[2])["error"]["message"]
    return message


async def have_been_read(port: int) -> None:
    """Wait until the gateway has read what was sent on other connections: a later request is answered."""
    async with connected(port) as other:
        other.send(HEALTH)
        await other.rest()


class TestRepeatedHeads:
    async def test_every_request_of_a_connection_is_read_for_itself(self) -> None:
        """Requests with the same head but for the length are answered like the first, each for what it says itself."""
        async with listening() as (gateway, port), connected(port) as client:
            for user in ("a", "bb", "a", "c" * 300):
                client.send(post(CHAT, json.dumps(chat(user=user)).encode()))
                assert status_of(await client.until(b'"chatcmpl-1"}')) == 200

            assert [call.view.user for call in gateway.backend.calls] == ["a", "bb", "a", "c" * 300]

    @pytest.mark.parametrize("cut", [1, 40, -1])
    async def test_a_repeated_head_may_come_in_pieces(self, cut: int) -> None:
        """What does not come as a whole is parsed like the first time."""
        request = post(CHAT, BODY)
        async with listening() as (gateway, port), connected(port) as client:
            for _ in range(3):
                client.send(request)
                await client.until(b'"chatcmpl-1"}')
                client.send(request[:cut])
                await have_been_read(port)
                client.send(request[cut:])
                assert status_of(await client.until(b'"chatcmpl-1"}')) == 200

            assert len(gateway.backend.calls) == 6

    async def test_a_repeated_head_may_be_sent_ahead(self) -> None:
        """Pipelined copies of a known request are answered one after the other."""
        async with listening() as (gateway, port), connected(port) as client:
            client.send(post(CHAT, BODY))
            await client.until(b'"chatcmpl-1"}')
            client.send(post(CHAT, BODY) * 3 + HEALTH)

            assert (await client.rest()).count(b"HTTP/1.1 200") == 4
            assert len(gateway.backend.calls) == 4

    async def test_a_body_that_looks_like_a_head_teaches_nothing(self) -> None:
        """What the end of a chunked body says, with a request behind it in one packet, is no request that was ever understood."""
        fake = b"POST /nowhere HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n"
        real = post(CHAT, BODY)
        tail = b"\r\n0\r\n\r\n" + real
        piece = fake % len(tail)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with listening() as (gateway, port), connected(port) as client:
            client.send(head + b"%x\r\n" % len(piece))
            await have_been_read(port)
            client.send(piece + tail)
            assert status_of(await client.until(b"}}")) == 400
            assert status_of(await client.until(b'"chatcmpl-1"}')) == 200
            client.send(fake % len(BODY) + BODY)

            assert status_of(await client.until(b"}}")) == 404
            assert len(gateway.backend.calls) == 1

    async def test_a_last_request_may_have_bytes_behind_it(self) -> None:
        """Whether or not a body came in pieces before, what follows a request that closes the connection has no meaning."""
        async with listening() as (_, port), connected(port) as client:
            large = post(CHAT, json.dumps(chat(user="u" * 400_000)).encode())
            client.send(large)
            await client.until(b'"chatcmpl-1"}')
            client.send(post(CHAT, BODY, "Connection: close") + b"\r\nxyz")

            assert status_of(await client.rest()) == 200

    async def test_a_repeated_head_with_a_body_that_is_too_large_is_refused(self) -> None:
        """The limit holds for a request that need not be parsed."""
        async with listening(max_body_bytes=200) as (_, port), connected(port) as client:
            client.send(post(CHAT, BODY))
            await client.until(b'"chatcmpl-1"}')
            client.send(post(CHAT, BODY + b" " * 200))

            assert status_of(await client.until(b"\r\n\r\n")) == 413


class TestTrailers:
    @pytest.mark.parametrize("more", [b"X-T: " + b"v" * 60_000 + b"\r\n", b"v" * 60_000], ids=["many", "one"])
    @pytest.mark.parametrize("path", [CHAT, "/nope"])
    async def test_trailers_without_end_end_the_connection(self, path: str, more: bytes) -> None:
        """They are not kept, and what is beside a body is bounded, whether the request was answered already or not."""
        head = b"POST %b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: " % path.encode()
        async with listening() as (_, port), connected(port) as client:
            client.send(head)
            for _ in range(8):
                client.send(more)

            assert status_of(await client.rest()) == (404 if path == "/nope" else 431)

    async def test_trailers_are_no_headers(self) -> None:
        """What a client writes behind its body is not taken for what it wrote before."""
        chunk = b"%x\r\n%b\r\n" % (len(BODY), BODY)
        head = b"POST %b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT.encode()
        async with listening() as (_, port), connected(port) as client:
            client.send(head + chunk + b"0\r\nX-Request-Id: forged\r\n\r\n" + HEALTH)
            answers = await client.rest()

            assert answers.count(b"HTTP/1.1 200") == 2
            assert b"forged" not in answers


class TestUpgrades:
    async def test_what_follows_an_offer_is_read_like_anything_else(self) -> None:
        """A large body and the beginning of a head in the same packet: the head is not taken to be as large as all of it."""
        offer = b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        async with listening() as (_, port), connected(port) as client:
            client.send(offer + post("/nope", b" " * 100_000) + HEALTH[:10])
            await have_been_read(port)
            client.send(HEALTH[10:])
            answers = (await client.rest()).split(b"HTTP/1.1 ")[1:]

            assert [answer[:3] for answer in answers] == [b"200", b"404", b"200"]

    @pytest.mark.parametrize(
        ("version", "connection"), [("1.0", "Upgrade"), ("1.1", "close, Upgrade"), ("1.1", "Upgrade, Close")]
    )
    async def test_an_offer_leaves_the_rest_as_it_was_said(self, version: str, connection: str) -> None:
        """HTTP/1.0 stays that, and `close` beside an offer closes (RFC 9110, 7.8)."""
        async with listening() as (_, port), connected(port) as client:
            client.send(post(CHAT, BODY, f"Connection: {connection}", "Upgrade: h2c", version=version))

            assert b"\r\nconnection: close\r\n" in await client.rest()

    async def test_http_1_0_is_not_told_to_continue(self) -> None:
        """It knows no interim answers (RFC 9110, 10.1.1)."""
        async with listening() as (_, port), connected(port) as client:
            client.send(post(CHAT, BODY, "Expect: 100-continue", version="1.0"))

            assert b"100 Continue" not in await client.rest()


class TestEarlyAnswers:
    @pytest.mark.parametrize(("path", "status"), [("/nope", 404), (CHAT, 413)])
    @pytest.mark.parametrize("version", ["1.0", "1.1"])
    async def test_an_early_answer_can_be_read_by_who_closes(self, path: str, status: int, version: str) -> None:
        """A client that sends all of its body first, and wants no second answer, finds this one afterwards."""
        async with listening(max_body_bytes=1000) as (_, port), connected(port) as client:
            client.send(post(path, b" " * 5_000_000, "Connection: close", version=version))
            await asyncio.wait_for(client.drain(), 10)

            assert status_of(await client.rest()) == status

    async def test_what_is_no_http_is_told_so_though_more_comes(self) -> None:
        """The refusal can be read by a client that is still sending."""
        async with listening() as (_, port), connected(port) as client:
            client.send(b"BOGUS\r\n\r\n" + b"x" * 3_000_000)
            await asyncio.wait_for(client.drain(), 10)

            assert status_of(await client.rest()) == 400

    async def test_options_without_a_body_say_no_length(self) -> None:
        """A 204 has none (RFC 9110, 8.6)."""
        async with listening() as (_, port), connected(port) as client:
            client.send(b"OPTIONS /v1/models HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            answer = await client.rest()

            assert status_of(answer) == 204
            assert b"content-length" not in answer.lower()


class TestLargeBodies:
    @pytest.mark.parametrize("cuts", [(200,), (201, 300_000), (150, 160, 170), (70_000, 140_000, 210_000)])
    async def test_a_body_in_any_pieces_is_one_body(self, cuts: tuple[int, ...]) -> None:
        """Wherever the network cuts it; what is sent ahead behind it is the next request."""
        user = "u" * 400_000
        data = post(CHAT, json.dumps(chat(user=user)).encode()) + post(CHAT, BODY) + HEALTH
        async with listening() as (gateway, port), connected(port) as client:
            for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
                client.send(data[start:end])
                await have_been_read(port)

            assert (await client.rest()).count(b"HTTP/1.1 200") == 3
            assert [call.view.user == user for call in gateway.backend.calls] == [True, False]

    @pytest.mark.parametrize("size", [0, 300_000, 500_000, 1_000_000])
    async def test_a_client_that_leaves_after_its_body_is_noticed(self, size: int) -> None:
        """However large the body was: the connection is read on while the answer is made."""
        async with listening() as (gateway, port):
            gateway.backend.hold = True
            async with connected(port) as client:
                client.send(post(CHAT, json.dumps(chat(user="u" * size)).encode()))
                await asyncio.wait_for(gateway.backend.asked.wait(), 10)

            await asyncio.wait_for(gateway.backend.cancelled.wait(), 10)

    async def test_a_client_that_leaves_within_a_body_leaves_nothing(self) -> None:
        """The request is given up."""
        async with listening() as (gateway, port):
            async with connected(port) as client:
                client.send(post(CHAT, b" " * 400_000)[:-1])
            async with connected(port) as other:
                other.send(HEALTH)
                await other.rest()

            assert gateway.backend.calls == []
            assert gateway.parts.admission.body_bytes == 0


class TestAnswers:
    async def test_a_stream_ends_with_its_terminal_and_the_connection_lives_on(self) -> None:
        """After the terminal the response ends, and the connection takes the next request."""
        async with listening(FakeStream(EVENT, DONE)) as (_, port), connected(port) as client:
            client.send(post(CHAT, STREAMED))
            streamed = await client.until(b"0\r\n\r\n")
            client.send(HEALTH)

            assert DONE in streamed
            assert status_of(await client.rest()) == 200

    async def test_http_1_0_gets_no_chunks(self) -> None:
        """A stream to an old client is the bytes themselves, up to the end of the connection."""
        async with listening(FakeStream(EVENT, DONE)) as (_, port), connected(port) as client:
            client.send(post(CHAT, STREAMED, version="1.0"))
            head, _, body = (await client.rest()).partition(b"\r\n\r\n")

            assert b"transfer-encoding" not in head.lower()
            assert body == EVENT + DONE

    async def test_http_1_0_gets_a_whole_answer(self) -> None:
        """A whole answer to an old client has its length, and the connection ends."""
        async with listening() as (_, port), connected(port) as client:
            client.send(post(CHAT, BODY, version="1.0"))

            assert b"content-length: 19" in await client.rest()

    async def test_a_pipelined_request_is_answered_after_the_stream(self) -> None:
        """What is sent ahead waits for the answer before it."""
        async with listening(FakeStream(EVENT, DONE)) as (_, port), connected(port) as client:
            client.send(post(CHAT, STREAMED) + HEALTH)
            both = await client.rest()

            assert both.index(DONE) < both.index(b'{"status":"ready"}')

    async def test_an_early_answer_can_be_read_by_who_still_sends(self) -> None:
        """A client that sends its whole body first finds the 413 afterwards, and may go on."""
        async with listening(max_body_bytes=1000) as (_, port), connected(port) as client:
            client.send(post(CHAT, b" " * 2_000_000) + HEALTH)
            both = await client.rest()

            assert (status_of(both), both.count(b"HTTP/1.1")) == (413, 2)

    async def test_a_body_behind_an_offer_to_upgrade_is_read(self) -> None:
        """A client that would rather speak HTTP/2 is served in HTTP/1.1, with its body."""
        offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
        async with listening() as (gateway, port), connected(port) as client:
            client.send(post(CHAT, BODY, *offer))
            await client.until(b'"chatcmpl-1"}')

            assert gateway.backend.calls[0].view.model == "tiny"

    async def test_a_body_in_drops_is_read(self) -> None:
        """A body that comes byte by byte is a body."""
        async with listening() as (gateway, port), connected(port) as client:
            for byte in post(CHAT, BODY):
                client.send(bytes([byte]))
                await client.writer.drain()
            await client.until(b'"chatcmpl-1"}')

            assert len(gateway.backend.calls) == 1


class TestRefusals:
    @pytest.mark.parametrize(
        ("request_", "status"),
        [
            (b"nonsense\r\n\r\n", 400),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            (b"CONNECT a.example:443 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
            (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
            (b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: h\r\n\r\n", 431),
            (post(CHAT, b"", "Transfer-Encoding: chunked"), 400),
        ],
        ids=["nonsense", "http2", "no-host", "two-hosts", "connect", "header", "url", "two-lengths"],
    )
    async def test_what_is_not_a_request_gets_the_error_object(self, request_: bytes, status: int) -> None:
        """A malformed head is answered in JSON, and the connection ends."""
        async with listening() as (_, port), connected(port) as client:
            client.send(request_)
            response = await client.rest()

            assert status_of(response) == status
            assert error_of(response).endswith(".")

    @pytest.mark.parametrize("fields", [b"X: " + b"a" * MAX_HEAD_BYTES + b"\r\n", b"X: abc\r\n" * 9_000])
    @pytest.mark.parametrize("cut", [10, MAX_HEAD_BYTES - 100, -1])
    async def test_a_large_head_is_as_large_in_two_pieces(self, fields: bytes, cut: int) -> None:
        """Wherever the network cuts it, and whether it is one long field or many short ones."""
        head = b"GET /health HTTP/1.1\r\nHost: h\r\n" + fields + b"\r\n"
        async with listening() as (_, port), connected(port) as client:
            client.send(head[:cut])
            await have_been_read(port)
            client.send(head[cut:])

            assert status_of(await client.rest()) == 431

    async def test_a_head_without_an_end_is_not_waited_for(self) -> None:
        """It is refused as soon as it is too large."""
        async with listening() as (_, port), connected(port) as client:
            client.send(b"GET /health HTTP/1.1\r\nHost: h\r\nX: " + b"a" * MAX_HEAD_BYTES)

            assert status_of(await client.rest()) == 431

    async def test_a_head_that_does_not_come_is_not_waited_for(self) -> None:
        """A head that is begun and not finished in time gets a 408; a silent connection just ends."""
        async with listening(head_timeout=0.05) as (_, port), connected(port) as slow, connected(port) as silent:
            slow.send(b"GET /health HTTP/1.1\r\nHo")

            assert status_of(await slow.rest()) == 408
            assert await silent.rest() == b""

    async def test_the_next_head_is_not_waited_for_either(self) -> None:
        """A connection that was used before has the same time for its next head."""
        async with listening(head_timeout=0.05) as (_, port), connected(port) as client:
            client.send(b"GET /health/live HTTP/1.1\r\nHost: h\r\n\r\n")
            await client.until(b"}")
            client.send(b"G")

            assert status_of(await client.rest()) == 408

    async def test_a_connection_may_be_silent_between_requests(self) -> None:
        """The time for a head does not run while nothing of it has come."""
        async with listening(head_timeout=0.05) as (_, port), connected(port) as client:
            client.send(b"GET /health/live HTTP/1.1\r\nHost: h\r\n\r\n")
            await client.until(b"}")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.reader.read(1), 0.2)

    async def test_nonsense_behind_a_stream_does_not_get_into_it(self) -> None:
        """What cannot be read as a next request ends the answer before it, and writes nothing into it."""
        stream = FakeStream(EVENT, silent=True)
        async with listening(stream) as (gateway, port), connected(port) as client:
            client.send(post(CHAT, STREAMED))
            await client.until(EVENT)
            client.send(b"nonsense\r\n\r\n")
            rest = await client.rest()

            assert b"HTTP/1.1" not in rest
        assert (stream.closed, gateway.idle) == (1, True)


class TestDisconnects:
    async def test_a_client_that_leaves_during_prefill_is_noticed(self) -> None:
        """Closing the connection cancels the backend's work within 100 ms."""
        async with listening() as (gateway, port):
            gateway.backend.hold = True
            async with connected(port) as client:
                client.send(post(CHAT, BODY))
                await gateway.backend.asked.wait()
            await asyncio.wait_for(gateway.backend.cancelled.wait(), 0.1)

    async def test_a_client_that_sent_ahead_is_noticed_too(self) -> None:
        """A request that waits behind the first does not hide that the client left."""
        async with listening() as (gateway, port):
            gateway.backend.hold = True
            async with connected(port) as client:
                client.send(post(CHAT, BODY) + HEALTH)
                await gateway.backend.asked.wait()
            await asyncio.wait_for(gateway.backend.cancelled.wait(), 0.1)

    async def test_a_client_that_does_not_read_holds_the_stream_back(self) -> None:
        """A stream without end is read only as far as its client's socket takes it, and others are served meanwhile."""
        stream = EndlessStream()
        async with listening(stream) as (_, port), connected(port) as client, connected(port) as other:
            client.send(post(CHAT, STREAMED))
            await client.until(b"\r\n\r\n")
            other.send(HEALTH)

            assert status_of(await other.rest()) == 200
            assert stream.reads * len(stream.CHUNK) < 64 << 20
