"""Writes to sockets, made together at the end of a turn of the event loop.

A write wakes the process that sleeps at the other end, and where that is on another core, waking it costs more than writing does.
Of writes that follow each other closely only the first one wakes: measured, that is a fifth of a small request, a tenth of a token.
"""

import asyncio
from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

Piece = bytes | memoryview

LARGE_BYTES: Final = 16 << 10
"""A piece above this size is written at once, and never copied."""
MOST_WAITING: Final = 32
"""So many connections may wait for the end of a turn: what a write saves by waiting is then saved, and its client waits too."""


class Outbox:
    """Everybody who has something to write in this turn of the loop. One per loop: `outbox_of`."""

    def __init__(self) -> None:
        self._waiting: list[Outgoing] = []

    def add(self, outgoing: "Outgoing") -> None:
        """Have this one's `flush` called at the end of the turn, or before."""
        waiting = self._waiting
        if not waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        waiting.append(outgoing)
        if len(waiting) >= MOST_WAITING:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for outgoing in waiting:
            try:
                outgoing.flush()
            except Exception as error:  # noqa: BLE001  the other connections have done nothing
                outgoing.failed(error)


_outboxes: "WeakKeyDictionary[asyncio.AbstractEventLoop, Outbox]" = WeakKeyDictionary()


def outbox_of(loop: asyncio.AbstractEventLoop) -> Outbox:
    """The loop's outbox."""
    outbox = _outboxes.get(loop)
    if outbox is None:
        outbox = _outboxes[loop] = Outbox()
    return outbox


class Outgoing:
    """The writing half of one connection. Whatever is written to its transport, and its end, must go this way, or order is lost."""

    __slots__ = ("_outbox", "_pieces", "_transport")

    def __init__(self, transport: asyncio.Transport, outbox: Outbox) -> None:
        self._transport = transport
        self._outbox = outbox
        self._pieces: list[Piece] = []

    def write(self, data: bytes) -> None:
        """Write within this turn of the loop; thrown away if the connection is closed by then."""
        pieces = self._pieces
        pieces.append(data)
        if len(data) > LARGE_BYTES:
            self.flush()
        elif len(pieces) == 1:
            self._outbox.add(self)

    def writelines(self, pieces: Sequence[Piece]) -> None:
        """Write these now, one behind the other, without a copy of large ones."""
        self._pieces += pieces
        self.flush()

    def flush(self) -> None:
        """Write what there is, now."""
        pieces, self._pieces = self._pieces, []
        transport = self._transport
        if transport.is_closing():
            return  # uvloop raises for a write to a connection that the peer has just closed.
        if len(pieces) == 1:
            transport.write(pieces[0])
        elif pieces:
            transport.writelines(pieces)

    def finish(self) -> None:
        """Write what there is, and say that nothing follows; the connection can still be read."""
        self.flush()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        """Close the connection behind what was written."""
        self.flush()
        self._transport.close()

    def failed(self, error: Exception) -> None:
        """End a connection that could not be written to."""
        context = {"message": "A connection could not be written to.", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        self._transport.abort()

    def is_empty(self) -> bool:
        """Whether the kernel has taken all that was written."""
        return not self._pieces and not self._transport.get_write_buffer_size()
