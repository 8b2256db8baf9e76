"""POST /v1/completions."""

from typing import ClassVar

from starlette.routing import Route

from gateway.api.generation import GenerationEndpoint, View
from gateway.api.parts import Parts
from schemas.codec import read_completion_view


class Completions(GenerationEndpoint):
    """Completions: `prompt` is text or token ids, and stays the client's JSON until it is framed."""

    operation: ClassVar[str] = "/v1/completions"

    def read(self, body: bytes) -> tuple[View, list[str]]:
        """See `codec.read_completion_view`."""
        return read_completion_view(body)


def routes(parts: Parts) -> list[Route]:
    """The endpoint's route."""
    return [Route(Completions.operation, Completions(parts), methods=["POST"], name="completions")]
