"""GET /v1/models and GET /v1/models/{model}: the union of what the workers serve."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.generation import model_not_found
from gateway.api.parts import Backend, Parts
from schemas.codec import encode_json
from schemas.openai.models import ModelList

JSON = "application/json"


class Models:
    """The models of a backend, as they are when asked."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def listed(self, _request: Request) -> Response:
        """All of them."""
        return Response(encode_json(ModelList(data=self._backend.models())), media_type=JSON)

    async def one(self, request: Request) -> Response:
        """One of them; its name may hold slashes. Raises a 404."""
        name: str = request.path_params["model"]
        for model in self._backend.models():
            if model.id == name:
                return Response(encode_json(model), media_type=JSON)
        raise model_not_found(name)


def routes(parts: Parts) -> list[Route]:
    """The endpoints' routes."""
    models = Models(parts.backend)
    return [
        Route("/v1/models", models.listed, methods=["GET"], name="models"),
        Route("/v1/models/{model:path}", models.one, methods=["GET"], name="models"),
    ]
