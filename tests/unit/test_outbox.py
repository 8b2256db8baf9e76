"""Writes that are made together at the end of a turn of the loop."""

import asyncio

from gateway.outbox import LARGE_BYTES, MOST_WAITING, Outgoing, outbox_of
from tests.unit.gateway_fakes import RecordingTransport


class BrokenTransport(RecordingTransport):
    """Raises for whatever is written."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Fails."""
        raise RuntimeError("no")

    def abort(self) -> None:
        """Noted."""
        self.closing = True


def outgoing(transport: RecordingTransport) -> Outgoing:
    """The writing half of a connection on the running loop."""
    return Outgoing(transport, outbox_of(asyncio.get_running_loop()))


async def test_writes_wait_for_the_end_of_the_turn() -> None:
    """What is written in one turn goes out after it, in its order."""
    transport = RecordingTransport()
    connection = outgoing(transport)
    connection.write(b"one ")
    connection.write(b"two")

    assert (transport.written, connection.is_empty()) == (b"", False)
    await asyncio.sleep(0)
    assert (transport.written, connection.is_empty()) == (b"one two", True)


async def test_a_large_piece_takes_what_waits_along_at_once() -> None:
    """It is not kept, and nothing overtakes."""
    transport = RecordingTransport()
    connection = outgoing(transport)
    connection.write(b"head")
    connection.write(b"x" * (LARGE_BYTES + 1))

    assert transport.written == b"head" + b"x" * (LARGE_BYTES + 1)


async def test_closing_writes_first() -> None:
    """The last words are not lost."""
    transport = RecordingTransport()
    connection = outgoing(transport)
    connection.write(b"last words")
    connection.close()

    assert (transport.written, transport.closing) == (b"last words", True)


async def test_a_connection_that_is_gone_is_not_written_to() -> None:
    """Uvloop would raise."""
    transport = RecordingTransport()
    connection = outgoing(transport)
    connection.write(b"lost")
    transport.closing = True
    await asyncio.sleep(0)

    assert transport.written == b""


async def test_nobody_waits_for_more_than_so_many_others() -> None:
    """When many connections have something to write in one turn, they are written to before its end."""
    transports = [RecordingTransport() for _ in range(MOST_WAITING + 1)]
    for transport in transports:
        outgoing(transport).write(b"x")

    assert [transport.written for transport in transports] == [b"x"] * MOST_WAITING + [b""]
    await asyncio.sleep(0)
    assert transports[-1].written == b"x"


async def test_a_connection_that_cannot_be_written_to_stops_nobody() -> None:
    """It is ended and told of; the others of the same turn are written to, in this turn and the next."""
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context["message"]))
    broken, sound = BrokenTransport(), RecordingTransport()
    other = outgoing(sound)
    outgoing(broken).write(b"x")
    other.write(b"one ")
    await asyncio.sleep(0)
    other.write(b"two")
    await asyncio.sleep(0)

    assert (sound.written, broken.closing, len(told)) == (b"one two", True, 1)
