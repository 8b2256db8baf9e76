"""GET /health/live, /health/ready and /health (the same as ready): who asks decides to restart us, or to send requests."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.parts import Parts
from gateway.lifecycle import Lifecycle, shutting_down
from schemas.openai.errors import ErrorKind, ServingError

_LIVE = Response(b'{"status":"live"}', media_type="application/json")
_READY = Response(b'{"status":"ready"}', media_type="application/json")


class Health:
    """What the lifecycle says of itself."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def live(self, _request: Request) -> Response:
        """The event loop turns; nothing else is promised."""
        return _LIVE

    async def ready(self, _request: Request) -> Response:
        """Requests are wanted here, and would find their workers. Raises a 503 otherwise."""
        if self._lifecycle.draining:
            raise shutting_down()
        if not self._lifecycle.ready():
            raise ServingError(ErrorKind.UNAVAILABLE, "No model can be served now.", code="not_ready", retry_after=1)
        return _READY


def routes(parts: Parts) -> list[Route]:
    """The endpoints' routes."""
    health = Health(parts.lifecycle)
    return [
        Route("/health", health.ready, methods=["GET"], name="health"),
        Route("/health/live", health.live, methods=["GET"], name="health"),
        Route("/health/ready", health.ready, methods=["GET"], name="health"),
    ]
