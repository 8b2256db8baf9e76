"""GET /health/live, /health/ready and /health (the same as ready): who asks decides to restart us, or to send requests.

The door asks `Health.body_of` itself: while the loop is busy with large bodies, the answer is to cost next to nothing.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.parts import Parts
from gateway.lifecycle import Lifecycle, shutting_down
from schemas.openai.errors import ErrorKind, ServingError

LIVE: Final = "/health/live"
READY: Final = frozenset({"/health", "/health/ready"})

_LIVE: Final = b'{"status":"live"}'
_READY: Final = b'{"status":"ready"}'


class Health:
    """What the lifecycle says of itself."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    def body_of(self, path: str) -> bytes | None:
        """The body of the 200 at this path, None if it is no path of ours. Raises the 503.

        Live: the event loop turns; nothing else is promised. Ready: requests are wanted here, and would find their workers.
        """
        if path == LIVE:
            return _LIVE
        if path not in READY:
            return None
        if self._lifecycle.draining:
            raise shutting_down()
        if not self._lifecycle.ready():
            raise ServingError(ErrorKind.UNAVAILABLE, "No model can be served now.", code="not_ready", retry_after=1)
        return _READY

    async def answer(self, request: Request) -> Response:
        """The same as a route, for whatever the door does not answer itself (HEAD)."""
        return Response(self.body_of(request.url.path), media_type="application/json")


def routes(parts: Parts) -> list[Route]:
    """The endpoints' routes."""
    answer = Health(parts.lifecycle).answer
    return [Route(path, answer, methods=["GET"], name="health") for path in (LIVE, *sorted(READY))]
