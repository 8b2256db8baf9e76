"""Prefill state: kept for a while, handed out once, fetched with care."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from schemas.disagg import DisaggregatedParams, OpaqueState, handoff_signature
from schemas.openai.errors import ServingError
from tests.fakes import ManualClock
from worker.handoff import (
    AUTH_HEADER,
    STATE_HEADER,
    WAIT_HEADER,
    Fetched,
    HandoffClient,
    Reason,
    TransferFailed,
    check_fetch,
    check_generation,
    check_transfer,
    digest_of,
    endpoint_of,
    fetch_signature,
)
from worker.handoff_store import HandoffStore, Kept

KEY = "a key"
LIMIT = 1000
STATE = b"state" * 20


def kept(data: bytes = STATE, request_id: str = "r") -> Kept:
    return Kept("described", data, request_id)


class Rig:
    """A store, its clock, and what it dropped."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.dropped: list[Reason] = []
        self.store = HandoffStore(LIMIT, 10.0, self.dropped.append, self.clock)


@pytest.fixture
def rig() -> Rig:
    return Rig()


class TestStore:
    async def test_a_state_is_handed_out_once(self, rig: Rig) -> None:
        """The first to ask gets it, the second does not, and its bytes are free again."""
        rig.store.put("h", kept())

        assert await rig.store.take("h") == kept()
        assert await rig.store.take("h") is None
        assert (len(rig.store), rig.store.size) == (0, 0)

    async def test_a_state_expires(self, rig: Rig) -> None:
        """After its time it is gone, and counted as expired."""
        rig.store.put("h", kept())
        rig.clock.advance(10.0)

        assert await rig.store.take("h") is None
        assert rig.dropped == [Reason.EXPIRED]

    def test_sweeping_frees_what_has_expired(self, rig: Rig) -> None:
        """Nobody needs to ask for a state to be freed."""
        rig.store.put("old", kept())
        rig.clock.advance(5.0)
        rig.store.put("new", kept())
        rig.clock.advance(5.0)

        rig.store.sweep()

        assert (len(rig.store), rig.store.size) == (1, len(STATE))

    async def test_the_oldest_makes_room(self, rig: Rig) -> None:
        """What does not fit beside the others drives out the oldest, as few as will do."""
        for name in ("a", "b", "c"):
            rig.store.put(name, kept(b"x" * 400))

        assert await rig.store.take("a") is None
        assert await rig.store.take("b") is not None
        assert rig.dropped == [Reason.EVICTED]

    async def test_the_expired_make_room_first(self, rig: Rig) -> None:
        """Where expired states are in the way, nothing is evicted."""
        rig.store.put("a", kept(b"x" * 600))
        rig.clock.advance(10.0)

        rig.store.put("b", kept(b"x" * 600))

        assert rig.dropped == [Reason.EXPIRED]

    def test_a_state_larger_than_the_store_is_refused(self, rig: Rig) -> None:
        """It cannot fit, so the request fails with a 503, and nothing else is dropped for it."""
        rig.store.put("a", kept())

        with pytest.raises(ServingError) as refused:
            rig.store.put("b", kept(b"x" * (LIMIT + 1)))

        assert (refused.value.status, refused.value.code) == (503, "handoff_store_full")
        assert (len(rig.store), rig.dropped) == (1, [Reason.FULL])

    def test_a_handle_put_again_replaces_the_first(self, rig: Rig) -> None:
        """The size counts what is there, not what was put."""
        rig.store.put("h", kept(b"x" * 100))
        rig.store.put("h", kept(b"x" * 10))

        assert (len(rig.store), rig.store.size) == (1, 10)

    async def test_a_request_is_forgotten_exactly(self, rig: Rig) -> None:
        """Forgetting a request drops its states, not those of one whose id only begins the same."""
        rig.store.put("1", kept(request_id="a"))
        rig.store.put("2", kept(request_id="ab"))

        rig.store.forget("a")

        assert await rig.store.take("1") is None
        assert await rig.store.take("2") is not None

    async def test_emptiness_can_be_waited_for(self, rig: Rig) -> None:
        """Waiting for an empty store ends when the last state is taken."""
        rig.store.put("h", kept())
        waiting = asyncio.create_task(rig.store.until_empty())
        await asyncio.sleep(0)

        await rig.store.take("h")

        await waiting


class TestWaiting:
    async def test_a_fetch_waits_for_a_state_that_comes(self, rig: Rig) -> None:
        """Who comes first gets the state the moment it is there; it is never kept."""
        waiting = asyncio.create_task(rig.store.take("h", wait=10.0))
        await asyncio.sleep(0)

        rig.store.put("h", kept())

        assert await waiting == kept()
        assert len(rig.store) == 0

    async def test_waiting_ends(self, rig: Rig) -> None:
        """A state that never comes is no state."""
        assert await rig.store.take("h", wait=0.01) is None

    async def test_a_fetch_that_was_given_up_does_not_swallow_the_state(self, rig: Rig) -> None:
        """A state put after the waiting fetch has gone is kept for the next one."""
        waiting = asyncio.create_task(rig.store.take("h", wait=10.0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})

        rig.store.put("h", kept())

        assert await rig.store.take("h") == kept()

    async def test_only_one_may_wait_for_a_handle(self, rig: Rig) -> None:
        """The second to wait is told at once that there is nothing: a state has one taker."""
        waiting = asyncio.create_task(rig.store.take("h", wait=10.0))
        await asyncio.sleep(0)

        assert await rig.store.take("h", wait=10.0) is None

        rig.store.put("h", kept())
        assert await waiting == kept()


def params(**fields: object) -> DisaggregatedParams:
    made = DisaggregatedParams(request_type="generation_only")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class TestSignatures:
    SENTENCE = "Invalid internal disaggregated request authentication"

    @pytest.mark.parametrize("endpoint", ["http://a:1", ["http://a:1", "http://b:1"]])
    def test_a_signed_request_passes(self, endpoint: str | list[str]) -> None:
        """The signature is over the first endpoint and the opaque state."""
        header = handoff_signature(KEY, "http://a:1", "c3RhdGU=")

        check_generation(KEY, header, params(ctx_info_endpoint=endpoint, encoded_opaque_state="c3RhdGU="))

    @pytest.mark.parametrize(
        "header", [None, "", "sha256=00", handoff_signature("other", "http://a:1", None), "sha256=é"]
    )
    def test_another_signature_is_the_documented_400(self, header: str | None) -> None:
        """A missing or wrong signature is a 400 with the reference's own words."""
        with pytest.raises(ServingError) as refused:
            check_generation(KEY, header, params(ctx_info_endpoint="http://a:1"))

        assert (refused.value.status, refused.value.message) == (400, self.SENTENCE)

    def test_a_request_that_names_nothing_needs_no_signature(self) -> None:
        """Where there is nothing to fetch or to trust, nothing is asked for."""
        check_generation(KEY, None, params(ctx_info_endpoint=None))

    def test_without_a_key_nothing_is_asked_for(self) -> None:
        """A worker without a key takes hand-offs from anybody."""
        check_generation(None, None, params(ctx_info_endpoint="http://a:1"))
        check_fetch(None, None, "h")

    def test_a_fetch_is_signed_for_its_handle(self) -> None:
        """The signature of one handle opens no other."""
        check_fetch(KEY, fetch_signature(KEY, "h"), "h")

        with pytest.raises(ServingError) as refused:
            check_fetch(KEY, fetch_signature(KEY, "other"), "h")

        assert refused.value.status == 401

    @pytest.mark.parametrize(
        ("given", "found"), [({}, None), ({"ctx_info_endpoint": []}, None), ({"ctx_info_endpoint": None}, None)]
    )
    def test_no_endpoint_is_none(self, given: dict[str, object], found: None) -> None:
        """Absent, null and an empty list all say nothing."""
        assert endpoint_of(params(**given)) is found


class TestTransfer:
    ANNOUNCED = OpaqueState(handle="h", model="m", engine="e", tokens=3, size=len(STATE), digest=digest_of(STATE))

    def test_what_was_announced_passes(self) -> None:
        """Size and digest are right."""
        check_transfer(self.ANNOUNCED, STATE)

    @pytest.mark.parametrize(
        ("data", "reason"),
        [(STATE[:-1], Reason.TRUNCATED), (STATE[:-1] + b"!", Reason.DAMAGED)],
        ids=["short", "wrong"],
    )
    def test_anything_else_does_not(self, data: bytes, reason: Reason) -> None:
        """A wrong size and a wrong digest are told apart."""
        with pytest.raises(TransferFailed) as failed:
            check_transfer(self.ANNOUNCED, data)

        assert failed.value.reason is reason


REPLY = b"HTTP/1.1 200 OK\r\n" + STATE_HEADER.encode() + b": described\r\ncontent-length: %d\r\n\r\n" % len(STATE)


class Peer:
    """A context worker that answers every connection with these bytes, then closes it; keeps what it was asked."""

    def __init__(self, reply: bytes) -> None:
        self.asked: list[bytes] = []
        self.url = ""
        self._reply = reply

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self._reply)
        writer.close()


@asynccontextmanager
async def peer(reply: bytes) -> AsyncIterator[Peer]:
    made = Peer(reply)
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield made


@asynccontextmanager
async def trickling(pieces: list[bytes], seconds: float) -> AsyncIterator[str]:
    """The URL of a context worker that says these pieces, each so long after the one before."""
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            if not writer.is_closing():
                writer.write(piece)
                await asyncio.sleep(seconds)
        writer.close()
        over.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await over.wait()


def client(key: str | None = None, *peers: str) -> HandoffClient:
    return HandoffClient(key, frozenset(peers), LIMIT)


class TestFetch:
    async def test_a_state_is_fetched_with_its_description(self) -> None:
        """The bytes and the header that describes them come back."""
        async with peer(REPLY + STATE) as worker:
            fetched = await client().fetch(worker.url, "h")

        assert fetched == Fetched("described", STATE)

    async def test_a_fetch_is_one_signed_get(self) -> None:
        """The handle is in the path, escaped; the signature and the wait are headers."""
        async with peer(REPLY + STATE) as worker:
            await client(KEY).fetch(f"{worker.url}/prefix/", "a/b", wait=1.5)

        head, *headers = worker.asked[0].decode().split("\r\n")
        assert head == "GET /prefix/_packrelay/handoff/a%2Fb HTTP/1.1"
        assert f"{AUTH_HEADER}: {fetch_signature(KEY, 'a/b')}" in headers
        assert f"{WAIT_HEADER}: 1500" in headers

    @pytest.mark.parametrize(
        ("reply", "reason"),
        [
            (b"", Reason.TRUNCATED),
            (REPLY[:20], Reason.TRUNCATED),
            (REPLY + STATE[:-1], Reason.TRUNCATED),
            (b"SSH-2.0-OpenSSH\r\n", Reason.DAMAGED),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n" + b"x" * 5000, Reason.DAMAGED),
            (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 100_000, Reason.DAMAGED),
            (b"HTTP/1.1 302 Found\r\nlocation: http://a\r\ncontent-length: 0\r\n\r\n", Reason.UNREACHABLE),
            (b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n", Reason.REFUSED),
            (b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n", Reason.LOST),
            (b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", Reason.UNREACHABLE),
        ],
        ids=[
            "nothing",
            "half a head",
            "half a body",
            "no http",
            "too long",
            "long head",
            "redirect",
            "401",
            "404",
            "503",
        ],
    )
    async def test_anything_else_is_a_reason(self, reply: bytes, reason: Reason) -> None:
        """Every wrong answer is a failed transfer with a reason; none is tried again."""
        async with peer(reply) as worker:
            with pytest.raises(TransferFailed) as failed:
                await client().fetch(worker.url, "h")

        assert failed.value.reason is reason
        assert len(worker.asked) == 1

    async def test_a_worker_that_is_not_there_is_unreachable(self, unused_tcp_port: int) -> None:
        """A refused connection is its own reason."""
        with pytest.raises(TransferFailed) as failed:
            await client().fetch(f"http://127.0.0.1:{unused_tcp_port}", "h")

        assert failed.value.reason is Reason.UNREACHABLE

    async def test_a_silent_worker_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A worker that accepts and says nothing does not hold the request for ever."""
        monkeypatch.setattr("worker.handoff.SILENCE_SECONDS", 0.05)
        done = asyncio.Event()

        async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await done.wait()
            writer.close()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(TransferFailed) as failed:
                await client().fetch(f"http://127.0.0.1:{port}", "h")
            done.set()

        assert failed.value.reason is Reason.SILENT

    async def test_a_transfer_that_only_trickles_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A worker that is never silent for long, and never done, does not hold the request for ever."""
        monkeypatch.setattr("worker.handoff.SILENCE_SECONDS", 0.1)
        pieces = [REPLY, *(STATE[index : index + 1] for index in range(len(STATE)))]
        async with trickling(pieces, 0.01) as url:
            with pytest.raises(TransferFailed) as failed:
                await client().fetch(url, "h")

        assert failed.value.reason is Reason.SILENT

    async def test_a_transfer_may_take_its_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What comes steadily, at the least rate and more, takes longer than any silence may."""
        monkeypatch.setattr("worker.handoff.SILENCE_SECONDS", 0.1)
        monkeypatch.setattr("worker.handoff.SLOWEST_BYTES_PER_SECOND", 100)
        pieces = [REPLY, *(STATE[index : index + 5] for index in range(0, len(STATE), 5))]
        async with trickling(pieces, 0.01) as url:
            fetched = await client().fetch(url, "h")

        assert fetched.data == STATE

    @pytest.mark.parametrize(
        "endpoint",
        [
            "tcp://127.0.0.1:1",
            "file:///etc/passwd",
            "127.0.0.1:1",
            "http://",
            "http://user@127.0.0.1:1",
            "http://127.0.0.1:1/\r\nx",
            "http://127.0.0.1:port",
            "http://[::1",
        ],
    )
    async def test_other_addresses_are_refused(self, endpoint: str) -> None:
        """Only plain http and https addresses are ever connected to."""
        with pytest.raises(TransferFailed) as failed:
            await client().fetch(endpoint, "h")

        assert failed.value.reason is Reason.REFUSED

    @pytest.mark.parametrize(
        "allowed", [lambda url: url.removeprefix("http://"), lambda _url: "127.0.0.1"], ids=["host and port", "host"]
    )
    async def test_a_listed_peer_is_asked(self, allowed: Callable[[str], str]) -> None:
        """A peer is listed by host, or by host and port."""
        async with peer(REPLY + STATE) as worker:
            assert (await client(None, allowed(worker.url)).fetch(worker.url, "h")).data == STATE

    async def test_a_peer_that_is_not_listed_is_refused(self) -> None:
        """With a list, nobody else is connected to."""
        async with peer(REPLY + STATE) as worker:
            with pytest.raises(TransferFailed) as failed:
                await client(None, "127.0.0.2").fetch(worker.url, "h")

        assert (failed.value.reason, worker.asked) == (Reason.REFUSED, [])
