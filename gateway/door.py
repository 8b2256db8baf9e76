"""What every request goes through, whoever serves it in the end.

client ──► Door ──one look-up on the path──► ChatCompletions, Completions      (plain ASGI, no middleware)
            └──everything else─────────────► FastAPI ──► models, health, metrics, …
"""

import re
from datetime import UTC, datetime
from time import monotonic
from typing import Final

import structlog
from fastapi import FastAPI
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from gateway.admission import Refusal
from gateway.api.cors import Cors
from gateway.api.errors import internal
from gateway.api.generation import EXCHANGE, GenerationEndpoint
from gateway.api.health import Health
from gateway.api.parts import Parts
from gateway.auth import ApiKeys
from gateway.cycle import CYCLE, Cycle
from gateway.exchange import CLIENT_CLOSED_REQUEST, ClientGone, Exchange
from gateway.ids import RequestIds
from gateway.lifecycle import shutting_down
from gateway.log import AccessLine, AccessLog
from gateway.protocol import CROWDED, no_connections
from gateway.relay import Reply
from schemas.openai.errors import ErrorKind, ServingError

_PROTECTED: Final = ("/v1/", "/cluster_info")
_CLIENT_ID: Final = re.compile(rb"[A-Za-z0-9_.:/+=@,~#-]{1,128}")
_MAX_LOGGED_PATH: Final = 256
_REFUSALS: Final = frozenset(reason.value for reason in Refusal) | {"shutting_down"}
_GENERATING: Final = frozenset({"chat", "completions"})

_log = structlog.get_logger(__name__)


class Door:
    """The outermost ASGI callable: every request gets its id, its key checked, exactly one answer, one log line, one count."""

    def __init__(self, app: FastAPI, parts: Parts, keys: ApiKeys, access_log: AccessLog | None = None) -> None:
        self._app = app
        self._parts = parts
        self._keys = keys
        self._access_log = access_log
        self._health = Health(parts.lifecycle)
        self._cors = Cors(parts.config.cors_origin)
        self._ids = RequestIds()
        self._routes = [route for route in app.routes if isinstance(route, Route)]
        self._generation = {
            route.path: route.endpoint for route in self._routes if isinstance(route.endpoint, GenerationEndpoint)
        }
        self._names = {route.path: route.name for route in self._routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = self._exchange(scope, send)
        lifecycle = self._parts.lifecycle
        lifecycle.begin(exchange)
        try:
            with exchange:
                await self._serve(exchange, scope, receive)
        except ClientGone:
            exchange.outcome = "client_gone"
        except ServingError as error:
            exchange.outcome = "refused" if error.code in _REFUSALS else ""
            await exchange.reply.error(error)
        except Exception as error:  # noqa: BLE001  every request gets an answer; the fault is logged
            _log.exception("request.failed", request_id=exchange.request_id, error=type(error).__name__)
            await exchange.reply.error(internal())
        finally:
            lifecycle.finish(exchange)
            self._account(exchange, scope)

    def _exchange(self, scope: Scope, send: Send) -> Exchange:
        request_id = self._ids.next()
        cycle: Cycle | None = scope.get(CYCLE)
        headers = cycle.fields if cycle is not None else dict(scope["headers"])
        client_id = headers.get(b"x-request-id")
        known = client_id if client_id and _CLIENT_ID.fullmatch(client_id) else None
        ours = [(b"x-request-id", known or request_id.encode("ascii"))]
        if self._cors.enabled:
            ours += self._cors.headers(headers)
        if self._parts.lifecycle.draining:
            ours.append((b"connection", b"close"))
        name = self._name_of(scope["path"])
        task = cycle.task if cycle is not None else None
        exchange = Exchange(Reply(send, ours, cycle), headers, name, scope["method"], request_id, task)
        if known:
            exchange.client_request_id = known.decode("ascii")
        return exchange

    async def _serve(self, exchange: Exchange, scope: Scope, receive: Receive) -> None:
        path = scope["path"]
        if exchange.method == "OPTIONS":
            await self._options(exchange, scope)
            return
        if path.startswith(_PROTECTED):
            self._keys.check(exchange.headers.get(b"authorization"))
        endpoint = self._generation.get(path) if exchange.method == "POST" else None
        if endpoint is None and exchange.method == "GET" and (healthy := self._health.body_of(path)) is not None:
            await exchange.reply.whole(200, healthy)
            return
        if endpoint is None:
            await self._app(scope, receive, exchange.reply.forward)
            return
        if CROWDED in scope:
            self._parts.admission.refusals[Refusal.NO_CONNECTIONS] += 1
            raise no_connections()
        if self._parts.lifecycle.draining:
            self._parts.admission.refusals[Refusal.DRAINING] += 1
            raise shutting_down()
        scope[EXCHANGE] = exchange
        await endpoint(scope, receive, exchange.reply.forward)

    async def _options(self, exchange: Exchange, scope: Scope) -> None:
        """What a path takes, and what a browser must know before it asks (no key is sent with that question)."""
        whole = scope["path"] == "*"  # The server itself is asked (RFC 9110, 9.3.7).
        matching = [route for route in self._routes if whole or route.matches(scope)[0] is not Match.NONE]
        methods = {method for route in matching for method in route.methods or ()}
        if not methods:
            raise ServingError(ErrorKind.NOT_FOUND, "There is no such endpoint here.")
        allow = ", ".join(sorted(methods | {"OPTIONS"})).encode("ascii")
        await exchange.reply.whole(204, b"", [(b"allow", allow), *self._cors.preflight(exchange.headers, allow)])

    def _name_of(self, path: str) -> str:
        """The endpoint's name, from a closed set: for the metrics and the log."""
        return self._names.get(path) or ("models" if path.startswith("/v1/models/") else "other")

    def _account(self, exchange: Exchange, scope: Scope) -> None:
        now = monotonic()
        reply = exchange.reply
        status = reply.status or CLIENT_CLOSED_REQUEST
        outcome = exchange.outcome or _outcome(status, failed=reply.failed)
        metrics = self._parts.metrics
        metrics.request_ended(exchange.endpoint, status, outcome)
        if exchange.endpoint in _GENERATING:
            metrics.durations.observe(now - exchange.started)
        if self._access_log is not None:
            first_byte = None if reply.first_byte is None else _microseconds(reply.first_byte - exchange.started)
            line = AccessLine(
                timestamp=datetime.now(UTC),
                request_id=exchange.request_id,
                client_request_id=exchange.client_request_id,
                endpoint=exchange.endpoint,
                method=exchange.method,
                path=scope.get("raw_path", b"")[:_MAX_LOGGED_PATH].decode("ascii", "backslashreplace"),
                status=status,
                outcome=outcome,
                stream=exchange.stream,
                seconds=_microseconds(now - exchange.started),
                first_byte=first_byte,
            )
            self._access_log.add(line)


def _outcome(status: int, *, failed: bool) -> str:
    """How a request ended, from a closed set."""
    if 400 <= status < 500:
        return "rejected"
    return "failed" if failed or status >= 500 else "completed"


def _microseconds(seconds: float) -> float:
    """To the microsecond; `round` takes longer than everything else that is done for a line."""
    return int(seconds * 1e6) / 1e6
