"""POST /v1/chat/completions."""

from typing import ClassVar

from starlette.routing import Route

from gateway.api.generation import GenerationEndpoint, View
from gateway.api.parts import Parts
from schemas.codec import read_chat_view


class ChatCompletions(GenerationEndpoint):
    """Chat: `messages` stay the client's JSON on their way through the gateway."""

    operation: ClassVar[str] = "/v1/chat/completions"

    def read(self, body: bytes) -> tuple[View, list[str]]:
        """See `codec.read_chat_view`."""
        return read_chat_view(body)


def routes(parts: Parts) -> list[Route]:
    """The endpoint's route."""
    return [Route(ChatCompletions.operation, ChatCompletions(parts), methods=["POST"], name="chat")]
