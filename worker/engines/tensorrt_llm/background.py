"""Calls that block for long, each on a daemon thread: what never returns must not keep the process from ending."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def in_background(name: str, call: Callable[[], T]) -> "asyncio.Future[T]":
    """The call's result, awaitable here. Cancelling the wait does not end the call."""
    done: Future[T] = Future()

    def run() -> None:
        # Running from here on: a wait that is given up cannot cancel it, and the result below always has a place.
        done.set_running_or_notify_cancel()
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            done.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(done)
