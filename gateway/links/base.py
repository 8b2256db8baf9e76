"""How the gateway speaks to one worker, whatever the transport.

LinkError
├── ConnectFailed   the worker was never reached: nothing of the request was delivered
├── WorkerLost      the connection ended before the reply did
├── WorkerSilent    a deadline passed without the bytes that were due
└── BadReply        the worker answered something that is not its protocol
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from gateway.spliced_frame import RequestFrame


class LinkError(Exception):
    """A worker could not be asked, or did not answer properly. The message is for logs, never for clients."""


class ConnectFailed(LinkError):
    """No connection, refused or not in time: the request was not delivered, so it may be sent elsewhere without running twice."""


class WorkerLost(LinkError):
    """The worker went away in the middle of an exchange."""


class WorkerSilent(LinkError):
    """The worker was connected to and did not answer within a deadline. The exchange has been aborted."""


class BadReply(LinkError):
    """The worker's bytes are not a reply this link understands."""


class Deadlines(Struct, frozen=True, kw_only=True):
    """The phases of one exchange, in seconds; each has its own bound.

    `first_byte` runs from the moment the request is sent until the reply's head is here (for a stream: until its first event,
    which is when prefill is over; SSE comments do not count). `idle` is the longest silence between two pieces of a reply; it does
    not run while bytes wait for a reader who is late. `total` ends everything. A connect that takes too long is ConnectFailed,
    every other deadline WorkerSilent.
    """

    connect: float = 2.0
    first_byte: float = 120.0
    idle: float = 60.0
    total: float = 600.0

    def within(self, seconds: float) -> "Deadlines":
        """The same with another end of everything."""
        return Deadlines(connect=self.connect, first_byte=self.first_byte, idle=self.idle, total=seconds)


class Reply(Struct, frozen=True):
    """A whole reply: HTTP status, headers with lower-case names, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Take = Callable[[bytes], bool]
"""Takes whole events, at once; False says that the next ones are to wait until they are read."""


class ReplyStream(Protocol):
    """A reply being read. Whoever holds one closes it, whatever happens; closing before the end is what aborts the worker.

    A successful stream (`status` 200 and content type `text/event-stream`) yields **whole SSE events only**: every chunk ends
    with a blank line. Its end is checked: a stream that stops without a terminal (`data: [DONE]`, or a record with an `error`
    object) raises WorkerLost, and what follows the terminal is cut. A stock error record ends the stream: the record is
    yielded (as the OpenAI error object), the `[DONE]` after it is not.

    What arrived before a failure is yielded before it is raised. Memory is bounded: a worker whose bytes are not read is not
    read from. One task reads at a time.
    """

    status: int
    headers: Mapping[str, str]

    @property
    def failed(self) -> bool:
        """Whether the last events that were read end with an error record: the worker's own word that it failed."""
        ...

    async def read(self) -> bytes:
        """The next bytes, as many as are here; `b""` once the reply is complete. Raises WorkerLost, WorkerSilent, BadReply.

        Cancelling a read ends nothing by itself: `close` does.
        """
        ...

    async def pass_on(self, take: Take) -> None:
        """Give the events of a stream to `take` as they arrive, without waking a task for each.

        Returns when `take` has answered False, or when `read` has something else than ordinary events: the terminal, or a failure.
        Nothing is given to `take` after this has returned or was cancelled.
        """
        ...

    async def body(self) -> bytes:
        """All that is left (bounded by the link's reply limit): for replies that are not a stream."""
        ...

    def close(self) -> None:
        """Give the connection back, or end it if the reply is not complete. Never blocks; a second call does nothing."""
        ...


class Link(Protocol):
    """The connection to one worker: pooled, shared by all requests of this process.

    Nothing is retried in here, with one exception: a request on a reused connection that the worker had closed while it was idle
    is sent again, once, on a new one. If that fails too it is WorkerLost, for the worker may have had the request.
    """

    url: str

    async def call(
        self, operation: str, frame: RequestFrame, headers: Mapping[str, str], deadlines: Deadlines
    ) -> Reply:
        """POST one frame, tagged as msgpack, and wait for the whole reply. Cancelling it aborts the worker."""
        ...

    async def stream(
        self, operation: str, frame: RequestFrame, headers: Mapping[str, str], deadlines: Deadlines
    ) -> ReplyStream:
        """POST one frame and return when the reply's head is here. Cancelling it aborts the worker."""
        ...

    async def get(self, path: str, deadlines: Deadlines) -> Reply:
        """GET a side path (`/health`, `/v1/models`, `/server_info`)."""
        ...

    async def close(self) -> None:
        """End all connections. A second call does nothing."""
        ...
