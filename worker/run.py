"""One request being served, and how it is ended from outside: by its deadline, by an abort, by the end of the process."""

import asyncio

from schemas.openai.errors import ErrorKind, ServingError


class Run:
    """A request from admission to its last byte. Everything that ends it early goes through one timeout, so it ends once.

    `key` is unique among runs even where clients reuse `request_id`. `handle` names the prefill state made for it, if any.
    """

    def __init__(self, request_id: str, key: str, endpoint: str, scope: asyncio.Timeout) -> None:
        self.request_id = request_id
        self.key = key
        self.endpoint = endpoint
        self.handle: str | None = None
        self._scope = scope
        self._error: ServingError | None = None

    @property
    def error(self) -> ServingError:
        """Why it was ended early; its deadline, if nobody said anything."""
        return self._error or ServingError(ErrorKind.DEADLINE, "The request did not finish in time.", code="deadline")

    @property
    def stopped(self) -> bool:
        """Whether somebody ended it, even if it was complete before it noticed."""
        return self._error is not None

    def stop(self, error: ServingError) -> None:
        """End it: whoever serves it gets this error at its next await. A second call changes nothing."""
        if self._error is None and not self._scope.expired():
            self._error = error
            self._scope.reschedule(asyncio.get_running_loop().time())
