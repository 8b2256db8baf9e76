"""A whole reply delivered as a stream: for an answer the context leg finished although a stream was asked for."""

from msgspec import structs

from gateway.links.base import Take
from schemas.codec import AnyChatView, AnyCompletionView
from schemas.openai.chat import ChatCompletion
from schemas.openai.completions import Completion
from schemas.openai.replay import events_of
from schemas.openai.stream import ChatChunks, CompletionChunks, StreamHead, stream_head


class WholeStream:
    """A stream whose bytes are all here."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.failed = False

    async def read(self) -> bytes:
        """Everything, then `b""`."""
        data, self._data = self._data, b""
        return data

    async def pass_on(self, take: Take) -> None:
        """Nothing comes that is not here."""

    def close(self) -> None:
        """Nothing is left to end."""


def replay(reply: ChatCompletion | Completion, view: AnyChatView | AnyCompletionView) -> WholeStream:
    """The reply as the records a stream of it would have had."""
    head: StreamHead = structs.replace(stream_head("", view, reply.model), id=reply.id)
    chunks = ChatChunks(head) if isinstance(reply, ChatCompletion) else CompletionChunks(head)
    return WholeStream(b"".join(chunks.records(event) for event in events_of(reply)))
