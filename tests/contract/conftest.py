"""What the contract tests stand on: our gateway in front of stand-ins, on real sockets."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import httpx2
import pytest

from tests.contract.serving import serving_gateway

GatewayUrl = Callable[..., Awaitable[str]]


@pytest.fixture
async def gateway_url() -> AsyncIterator[GatewayUrl]:
    """Starts gateways that end with the test: called with settings such as `worker=(url,)`, gives the URL of one."""
    async with AsyncExitStack() as stack:

        async def start(**settings: object) -> str:
            return await stack.enter_async_context(serving_gateway(**settings))

        yield start


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    """A client without a base URL."""
    async with httpx2.AsyncClient() as client:
        yield client
