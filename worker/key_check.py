"""Who may give a worker work where `--require-key` is set: holders of the internal key. Asked before a body is read."""

import hmac
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.codec import WORKER_AUTH_HEADER
from schemas.disagg import worker_signature
from schemas.openai.errors import ErrorKind, ServingError
from worker.error_replies import error_reply
from worker.handoff import PATH as HANDOFF_PATH

OPEN: Final = frozenset({"/health", "/metrics", "/version", "/server_info", "/v1/models"})
"""What anybody may GET: it makes the worker do nothing, and orchestrators and monitors that know no key ask for it."""

_HEADER: Final = WORKER_AUTH_HEADER.encode("ascii")


class KeyCheck:
    """Answers 401 to who does not show the key. A prefill state is fetched with a signature of its own, which is checked there."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._wanted = worker_signature(key).encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open(scope) or self._shows_key(scope):
            await self._app(scope, receive, send)
            return
        refusal = ServingError(ErrorKind.UNAUTHENTICATED, "The worker's key is missing or wrong.", code="invalid_key")
        # What is left of the body is not read.
        await error_reply(refusal, {"connection": "close"})(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return scope["method"] == "GET" and (path in OPEN or path.startswith(("/v1/models/", HANDOFF_PATH)))

    def _shows_key(self, scope: Scope) -> bool:
        shown = [value for name, value in scope["headers"] if name == _HEADER]
        return len(shown) == 1 and hmac.compare_digest(shown[0], self._wanted)
