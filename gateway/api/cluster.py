"""GET /cluster_info: the workers, and whether they are enough. It names hosts, so it asks for a key where there are keys."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.parts import Parts
from schemas.codec import encode_json


def routes(parts: Parts) -> list[Route]:
    """The endpoint's route."""

    async def cluster_info(_request: Request) -> Response:
        return Response(encode_json(parts.backend.cluster()), media_type="application/json")

    return [Route("/cluster_info", cluster_info, methods=["GET"], name="cluster")]
