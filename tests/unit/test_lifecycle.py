"""How the gateway stops: what clients see of it, in process and as a process that gets a signal."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.api.generation import took_too_long
from gateway.exchange import Exchange, TimeLimit
from gateway.lifecycle import shutting_down
from gateway.relay import Reply
from gateway.server import ListenFailed, listen
from schemas.openai.errors import ServingError
from tests.unit.gateway_fakes import CHAT, EVENT, FakeStream, Rig, chat, error_reply, rig, turns
from tests.unit.gateway_sockets import connected, listening, post

STREAMED = json.dumps(chat(stream=True)).encode()


async def streaming(gateway: Rig) -> asyncio.Task[bytes]:
    """A stream that has begun and will not end by itself; the task's result is what the client got of it."""
    begun = asyncio.Event()
    gateway.client.on_message = lambda message: begun.set() if message.get("body") else None

    async def collect() -> bytes:
        return (await gateway.client.post(CHAT, chat(stream=True))).body

    task = asyncio.create_task(collect())
    await begun.wait()
    return task


class TestInProcess:
    async def test_the_app_starts_and_closes_its_backend(self) -> None:
        """The workers are known before the first request, and let go of after the last."""
        async with listening() as (gateway, _):
            assert (gateway.backend.started, gateway.backend.closed) == (1, 0)

        assert gateway.backend.closed == 1

    async def test_not_ready_comes_first(self) -> None:
        """While it drains the gateway is not ready, refuses new work, and still answers that it lives."""
        gateway = rig()
        gateway.parts.lifecycle.stop_accepting()

        assert (await gateway.client.get("/health/ready")).status == 503
        assert (await gateway.client.get("/health/live")).status == 200
        refused = await gateway.client.post(CHAT, chat())
        assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (503, "shutting_down", "1")
        assert refused.headers["connection"] == "close"

    async def test_what_runs_may_finish(self) -> None:
        """An answer that is under way when the stop comes is delivered, and the drain ends with it."""
        gateway = rig(grace=30.0)
        gateway.backend.hold = True
        answering = asyncio.create_task(gateway.client.post(CHAT, chat()))
        await gateway.backend.asked.wait()

        draining = asyncio.create_task(gateway.parts.lifecycle.drain())
        await asyncio.sleep(0)
        gateway.backend.release.set()
        await draining

        assert (await answering).status == 200

    async def test_the_rest_is_told(self) -> None:
        """A stream that outlives the grace ends with an error record, and its legs are aborted."""
        stream = FakeStream(EVENT, silent=True)
        gateway = rig(stream, grace=0.0)
        task = await streaming(gateway)

        await gateway.parts.lifecycle.drain()
        event, record, end = (await task).split(b"\n\n")

        assert (event + b"\n\n", end, stream.closed) == (EVENT, b"", 1)
        assert json.loads(record.removeprefix(b"data: "))["error"] == error_reply(shutting_down())

    async def test_a_request_without_an_answer_yet_is_told_too(self) -> None:
        """What outlives the grace in prefill gets a 503."""
        gateway = rig(grace=0.0)
        gateway.backend.hold = True
        answering = asyncio.create_task(gateway.client.post(CHAT, chat()))
        await gateway.backend.asked.wait()

        await gateway.parts.lifecycle.drain()

        assert (await answering).status == 503
        assert gateway.backend.cancelled.is_set()

    async def test_a_hurry_ends_the_wait(self) -> None:
        """With a second signal the grace is over at once."""
        gateway = rig(FakeStream(EVENT, silent=True), grace=3600.0)
        task = await streaming(gateway)

        draining = asyncio.create_task(gateway.parts.lifecycle.drain())
        await asyncio.sleep(0)
        gateway.parts.lifecycle.hurry()
        await draining

        assert b"shutting_down" in await task

    async def test_draining_twice_does_no_harm(self) -> None:
        """A drained gateway is drained."""
        lifecycle = rig().parts.lifecycle

        await lifecycle.drain()
        await lifecycle.drain()

        assert lifecycle.draining

    async def test_a_waiting_request_is_not_begun_while_draining(self) -> None:
        """Who gets a place only after the stop came is sent away."""
        gateway = rig(max_in_flight=1)
        gateway.backend.hold = True
        first = asyncio.create_task(gateway.client.post(CHAT, chat()))
        await gateway.backend.asked.wait()
        second = asyncio.create_task(gateway.another_client().post(CHAT, chat()))
        await turns()
        assert gateway.parts.admission.waiting == 1

        gateway.parts.lifecycle.stop_accepting()
        gateway.backend.release.set()

        assert ((await first).status, (await second).status) == (200, 503)


class TestExchange:
    async def test_the_cause_is_what_leaves_it(self) -> None:
        """Whoever ends an exchange says with what; the cancellation is not seen outside."""
        with pytest.raises(ZeroDivisionError):
            await ended_by(ZeroDivisionError())

        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    async def test_only_the_first_cause_counts(self) -> None:
        """A second end changes nothing."""
        with pytest.raises(ZeroDivisionError):
            await ended_by(ZeroDivisionError(), KeyError())

    async def test_an_end_after_the_end_does_nothing(self) -> None:
        """Whoever is late cancels nobody."""
        with exchange() as over:
            pass

        over.end(ZeroDivisionError())
        await asyncio.sleep(0)

    async def test_anothers_cancellation_stays_one(self) -> None:
        """A task that is cancelled by somebody else is cancelled, exchange or not."""

        async def wait() -> None:
            with exchange():
                await asyncio.Event().wait()

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task


async def ended_by(*causes: Exception) -> None:
    """Wait in an exchange that is ended by these causes, one after the other."""
    with exchange() as ended:
        for cause in causes:
            asyncio.get_running_loop().call_soon(ended.end, cause)
        await asyncio.Event().wait()


class TestTimeLimits:
    async def test_an_exchange_ends_when_its_time_is_over(self) -> None:
        """What waits under a limit is ended with the limit's cause."""
        with pytest.raises(ServingError, match="too long"):
            await waiting_under(TimeLimit(0.01, took_too_long))

    async def test_another_limit_takes_the_place_of_the_first(self) -> None:
        """Of two limits only the later one counts."""
        with pytest.raises(ServingError, match="too long"):
            await waiting_under(TimeLimit(0.01, RuntimeError), TimeLimit(0.02, took_too_long))


async def waiting_under(*limits: TimeLimit) -> None:
    """An exchange that does nothing, under one limit after the other."""
    with exchange() as limited:
        for limit in limits:
            limited.limit(limit)
        await asyncio.Event().wait()


def exchange() -> Exchange:
    """An exchange nobody is answered in."""

    async def send(_message: object) -> None:
        """Nowhere."""

    return Exchange(Reply(send, []), {}, "chat", "POST", "id")


@asynccontextmanager
async def process(grace: float, stream: str = "silent") -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A gateway process and its port; killed at the end if it is still there."""
    command = (sys.executable, "-P", "-m", "tests.unit.gateway_process", str(grace), stream)
    running = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert running.stderr is not None
    try:
        async for line in running.stderr:
            if b"gateway.listening" in line:
                break
        yield running, json.loads(line)["port"]
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


class TestProcess:
    async def test_a_signal_ends_streams_with_a_record_and_the_process_with_0(self) -> None:
        """SIGTERM: the client's stream ends with an error record, the connection closes, the status is 0."""
        async with process(grace=0.2) as (running, port), connected(port) as client:
            client.send(post(CHAT, STREAMED))
            await client.until(EVENT)
            running.send_signal(signal.SIGTERM)
            rest = await client.rest()

            assert b'"shutting_down"' in rest
            assert b"[DONE]" not in rest
            assert await asyncio.wait_for(running.wait(), 10) == 0

    async def test_a_second_signal_skips_the_wait(self) -> None:
        """With an hour of grace two signals end the process at once."""
        async with process(grace=3600) as (running, port), connected(port) as client:
            client.send(post(CHAT, STREAMED))
            await client.until(EVENT)
            running.send_signal(signal.SIGINT)
            await new_work_is_refused(port)
            running.send_signal(signal.SIGINT)

            assert b'"shutting_down"' in await client.rest()
            assert await asyncio.wait_for(running.wait(), 10) == 0

    async def test_a_client_that_does_not_read_does_not_hold_it_up(self) -> None:
        """A client that neither reads nor leaves cannot keep the process alive."""
        async with process(grace=0.0, stream="endless") as (running, port), connected(port) as client:
            client.send(post(CHAT, STREAMED))
            await client.until(b"\r\n\r\n")
            running.send_signal(signal.SIGTERM)

            assert await asyncio.wait_for(running.wait(), 10) == 0

    async def test_idle_connections_do_not_hold_it_up(self) -> None:
        """Connections between two requests, or in the middle of a head, are closed."""
        async with process(grace=3600) as (running, port), connected(port) as idle, connected(port) as begun:
            idle.send(b"GET /health/live HTTP/1.1\r\nHost: h\r\n\r\n")
            await idle.until(b"}")
            begun.send(b"POST")
            running.send_signal(signal.SIGTERM)

            assert await asyncio.wait_for(running.wait(), 10) == 0


async def new_work_is_refused(port: int) -> None:
    """Returns once new requests are told that the gateway stops."""
    while True:
        async with connected(port) as client:
            client.send(b"GET /health/ready HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            if b"shutting_down" in await client.rest():
                return


def test_a_port_that_is_taken_is_named() -> None:
    """Not being able to listen is said with the flags it was asked for by."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ListenFailed, match="--port"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_an_ipv6_address_can_be_listened_on() -> None:
    """The address decides the family."""
    with listen("::1", 0) as listener:
        assert listener.family is socket.AF_INET6
