"""What the endpoints ask of whoever serves, and the answer they get."""

from msgspec import Struct

from schemas.codec import AnyChatView, AnyCompletionView


class Call(Struct, kw_only=True):
    """One client request, read and checked. `deadline` is on the event loop's clock, in seconds.

    `conversation_id` is the conversation it belongs to, if the client says so: for routers, and for workers that want it.
    """

    operation: str
    view: AnyChatView | AnyCompletionView
    request_id: str
    stream: bool
    deadline: float
    conversation_id: str | None = None


class Answer(Struct, kw_only=True):
    """A whole answer: JSON."""

    body: bytes
