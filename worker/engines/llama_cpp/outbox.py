"""Outputs on their way from the engine thread to the event loop: one slot for each sequence, merged where the reader is late."""

import asyncio
from threading import Lock

from msgspec import structs

from worker.engines.base import SequenceOutput


class Outbox:
    """One sequence's slot. `arrived` belongs to the event loop; everything else is the delivery's."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.output: SequenceOutput | None = None
        self.failure: Exception | None = None
        self.ended = False


class Delivery:
    """Fills outboxes from the engine thread, and wakes their readers with one call into the event loop for all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = Lock()
        self._filled: set[Outbox] = set()
        self._woken = False

    def put(self, outbox: Outbox, output: SequenceOutput) -> None:
        """Add what is new. It is read after the next `flush`."""
        with self._lock:
            self._merge(outbox, output)
            self._filled.add(outbox)

    def end(self, outbox: Outbox, failure: Exception | None = None) -> None:
        """Nothing follows: the sequence was aborted, or failed."""
        with self._lock:
            outbox.failure = failure
            outbox.ended = True
            self._filled.add(outbox)

    def flush(self) -> None:
        """Wake whoever has something to read, unless the event loop has yet to follow the last call."""
        with self._lock:
            if self._woken or not self._filled:
                return
            self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # The event loop is closed, and with it everyone who could read.
            return

    def take(self, outbox: Outbox) -> SequenceOutput | None:
        """Everything since the last time; None if there is nothing but the end. Raises what the sequence failed with."""
        with self._lock:
            output, outbox.output = outbox.output, None
            failure = outbox.failure if output is None else None
        if failure is not None:
            raise failure
        return output

    def _wake(self) -> None:
        with self._lock:
            filled, self._filled = self._filled, set()
            self._woken = False
        for outbox in filled:
            outbox.arrived.set()

    def _merge(self, outbox: Outbox, output: SequenceOutput) -> None:
        earlier = outbox.output
        if earlier is None:
            # A list of its own: later outputs are added to it in place.
            outbox.output = structs.replace(output, tokens=list(output.tokens))
            return
        earlier.tokens.extend(output.tokens)
        outbox.output = SequenceOutput(
            tokens=earlier.tokens,
            finish_reason=output.finish_reason,
            stop_token=output.stop_token,
            cached_tokens=earlier.cached_tokens,
            prompt=earlier.prompt,
            state=output.state,
        )
