"""A client that leaves ends the work done for it, at once, whether its answer is streamed or not."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import anyio
from starlette.types import Receive

T = TypeVar("T")

CLEAN_UP_SECONDS: Final = 5.0


class ClientGone(Exception):
    """The client left before its answer was complete. Nobody is there to be told."""


async def while_connected(
    receive: Receive, work: Coroutine[Any, Any, T], answered: Callable[[], bool] = lambda: False
) -> T:
    """The result of the work. If the client leaves first the work is cancelled, and ClientGone raised once it has cleaned up.

    A server reports the end of a complete answer as a disconnect too; `answered` tells the two apart. The work runs in a task of
    its own, so that its clean-up is not cut short by whatever cancels this one.
    """
    working = asyncio.create_task(work, name="work")
    leaving = asyncio.create_task(_left(receive, answered), name="disconnect")
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        await _end(working, leaving)


async def _left(receive: Receive, answered: Callable[[], bool]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if answered():
        await asyncio.Event().wait()


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    with anyio.move_on_after(CLEAN_UP_SECONDS, shield=True):
        await asyncio.wait(tasks)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # Nobody is left to be told; asked for, so that asyncio does not complain.
