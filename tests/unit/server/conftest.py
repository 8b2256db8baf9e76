"""The gateway's server on both event loops: they differ in how much they read at once, and in what they do when told not to."""

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Production runs on uvloop; plain asyncio must do too."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
