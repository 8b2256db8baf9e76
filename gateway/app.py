"""The FastAPI app: every public endpoint is one of its routes, so its route table is the whole truth.

In front of it stands the door (`gateway/door.py`), which takes the shorter way to the endpoints that generate.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from gateway.api import chat, cluster, completions, document, health, metrics, models, version
from gateway.api.errors import on_bug, on_http_exception, on_serving_error
from gateway.api.parts import Parts
from gateway.scrape import Scrape
from schemas.openai.errors import ServingError

CLOSE_TIMEOUT_SECONDS: Final = 5.0


def create_app(parts: Parts, scrape: Scrape) -> FastAPI:
    """The FastAPI app with every public endpoint. Its lifespan starts the backend, and closes it at the end."""
    routes: list[BaseRoute] = [
        *chat.routes(parts),
        *completions.routes(parts),
        *models.routes(parts),
        *health.routes(parts),
        *cluster.routes(parts),
        *version.routes(),
        *metrics.routes(scrape),
        *document.routes(),
    ]
    return FastAPI(
        title="packrelay",
        routes=routes,
        openapi_url=None,  # FastAPI's own document would not know our Structs.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # A redirect would be built from the Host header, which is the client's.
        exception_handlers={
            ServingError: on_serving_error,
            HTTPException: on_http_exception,
            Exception: on_bug,
        },
        lifespan=_lifespan_of(parts, scrape),
    )


def _lifespan_of(parts: Parts, scrape: Scrape) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        lag = asyncio.create_task(parts.metrics.measure_lag(), name="loop-lag")
        await scrape.start()
        await parts.backend.start()
        parts.lifecycle.start()
        try:
            yield
        finally:
            lag.cancel()
            await scrape.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                    await parts.backend.close()

    return lifespan
