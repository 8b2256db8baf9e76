"""GET /metrics: the page a Prometheus server reads."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.scrape import CONTENT_TYPE, Scrape
from schemas.openai.errors import ErrorKind, ServingError


class MetricsPage:
    """The counters as they are when asked."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    async def shown(self, _request: Request) -> Response:
        """All samples, of all processes."""
        try:
            page = await self._scrape.total()
        except OSError as error:  # A deadline too.
            message = "The metrics of another process of this gateway could not be had."
            raise ServingError(ErrorKind.UNAVAILABLE, message, retry_after=1) from error
        return Response(page, headers={"content-type": CONTENT_TYPE})


def routes(scrape: Scrape) -> list[Route]:
    """The endpoint's route."""
    return [Route("/metrics", MetricsPage(scrape).shown, methods=["GET"], name="metrics")]
