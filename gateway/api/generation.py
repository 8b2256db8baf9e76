"""What both endpoints that generate have in common: reading the request, checking it, and relaying its answer."""

import re
from collections.abc import Sequence
from time import monotonic
from typing import ClassVar, Final

from msgspec import UNSET
from starlette.types import Receive, Scope, Send

from gateway.api.parts import Parts
from gateway.body import body_at_hand, decoded, read_body, refuse_by_headers, too_slow
from gateway.call import Answer, Call
from gateway.conversation import settle_conversation
from gateway.exchange import Exchange, TimeLimit
from gateway.lifecycle import shutting_down
from gateway.relay import EventStream
from schemas.codec import AnyChatView, AnyCompletionView
from schemas.openai.errors import ErrorKind, ServingError, invalid
from schemas.openai.rules import check_together

EXCHANGE: Final = "packrelay.exchange"
"""The key of a scope under which the door leaves the exchange."""

HANDOFF_FIELDS: Final = ("disaggregated_params", "prompt_token_ids", "prompt_token_ids_b64")
"""What the two legs tell each other. From outside it would let a client read another's prefill state, so it is refused."""

IGNORED_HEADER: Final = b"x-packrelay-ignored-fields"
_MAX_NAMED: Final = 16
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_MARGIN_SECONDS: Final = 1.0
"""How much later than the orchestrator's deadline an exchange is ended for good: it is for clients that do not read."""

View = AnyChatView | AnyCompletionView


class GenerationEndpoint:
    """An ASGI endpoint behind the door: it expects the exchange in its scope, and leaves failures to be told by the door."""

    operation: ClassVar[str]

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._time_for_body = TimeLimit(parts.config.body_timeout, too_slow)
        self._time_for_answer = TimeLimit(parts.config.request_timeout + _MARGIN_SECONDS, took_too_long)

    def read(self, body: bytes) -> tuple[View, list[str]]:
        """The view of a body, and the names of the fields nobody knows. Raises DecodeFailure."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  an ASGI endpoint has three
        exchange: Exchange = scope[EXCHANGE]
        parts = self._parts
        with parts.admission.permit() as permit:
            headers = exchange.headers
            refuse_by_headers(headers, parts.config.max_body_bytes)
            body = body_at_hand(scope, parts.config.max_body_bytes, permit)
            if body is None:
                exchange.limit(self._time_for_body)
                body = await read_body(receive, parts.config.max_body_bytes, permit)
            exchange.watch(scope, receive)
            exchange.limit(self._time_for_answer)
            if b"content-encoding" in headers:
                body = await decoded(body, headers, parts.config.max_body_bytes, permit)
            call = self._call(exchange, body)
            if not permit.try_enter():
                await permit.enter()
            if parts.lifecycle.draining:
                raise shutting_down()
            answer = await parts.backend.answer(call)
            if isinstance(answer, Answer):
                await exchange.reply.whole(200, answer.body)
            else:
                await self._relay(exchange, answer)

    async def _relay(self, exchange: Exchange, events: EventStream) -> None:
        metrics = self._parts.metrics
        try:
            await exchange.reply.stream(events, metrics.token_gaps)
        finally:
            events.close()
            if exchange.reply.first_byte is not None:
                metrics.first_token.observe(exchange.reply.first_byte - exchange.started)

    def _call(self, exchange: Exchange, body: bytes) -> Call:
        """The request as the orchestrator takes it. Raises the 400 or 404 for what is wrong with it."""
        view, unknown = self.read(body)
        if unknown:
            self._take_note(exchange, unknown)
        refuse_handoff(view)
        exchange.stream = view.stream is True
        check_together(view)
        self._refuse_template(view)
        self._find_model(view.model)
        return Call(
            operation=self.operation,
            view=view,
            request_id=exchange.request_id,
            stream=exchange.stream,
            deadline=monotonic() + self._parts.config.request_timeout,
            conversation_id=settle_conversation(view, exchange.headers),
        )

    def _refuse_template(self, view: View) -> None:
        """A template is a program that runs on the workers: only the operator may let clients bring theirs."""
        allowed = self._parts.config.allow_request_chat_template
        if not allowed and getattr(view, "chat_template", UNSET) not in (UNSET, None):
            raise invalid("'chat_template' is not allowed in requests here.", "chat_template", "unsupported_parameter")

    def _take_note(self, exchange: Exchange, unknown: Sequence[str]) -> None:
        """Fields nobody knows are ignored and named, or refused when the operator wants it so."""
        for name in HANDOFF_FIELDS:
            if name in unknown:
                raise _not_from_outside(name)
        named = [name for name in unknown[:_MAX_NAMED] if _PLAIN_NAME.fullmatch(name)]
        if self._parts.config.strict:
            param = named[0] if named else None
            raise invalid(
                f"Unknown field: '{param}'." if param else "There are unknown fields.", param, "unknown_field"
            )
        self._parts.metrics.ignored_fields += len(unknown)
        others = len(unknown) - len(named)
        listed = [*named, f"and {others} more"] if others else named
        exchange.reply.headers.append((IGNORED_HEADER, ", ".join(listed).encode("ascii")))

    def _find_model(self, model: str) -> None:
        backend = self._parts.backend
        if backend.serves(model):
            return
        if not backend.can_serve():
            raise ServingError(ErrorKind.UNAVAILABLE, "The workers are not ready yet.", retry_after=1)
        raise model_not_found(model)


def refuse_handoff(view: View) -> None:
    """Raise a 400 for a hand-off field with a value; null is taken as if it was not there."""
    for name in HANDOFF_FIELDS:
        value = getattr(view, name, UNSET)
        if value is UNSET:
            continue
        if value is not None:
            raise _not_from_outside(name)
        setattr(view, name, UNSET)


def model_not_found(model: str) -> ServingError:
    """The 404 for a model that no worker has."""
    message = f"The model '{model[:128]}' does not exist."
    return ServingError(ErrorKind.NOT_FOUND, message, param="model", code="model_not_found")


def took_too_long() -> ServingError:
    """The 504 for a request that is over its time."""
    return ServingError(ErrorKind.DEADLINE, "The request took too long.", code="request_timeout")


def _not_from_outside(name: str) -> ServingError:
    return invalid(f"'{name}' is not accepted here: it is what workers tell each other.", name, "handoff_field")
