"""GET /version."""

from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schemas.codec import encode_json


async def shown(_request: Request) -> Response:
    """The version of the installed distribution."""
    return Response(encode_json({"version": version("packrelay")}), media_type="application/json")


def routes() -> list[Route]:
    """The endpoint's route."""
    return [Route("/version", shown, methods=["GET"], name="version")]
