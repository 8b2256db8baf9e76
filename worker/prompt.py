"""Chat templates: Jinja source that comes with a model, run in a sandbox with what templates of that ecosystem expect to find.

Source: transformers, "Chat templates" (trim_blocks, lstrip_blocks, loop controls, `generation` blocks, raise_exception,
strftime_now, tojson without HTML escapes).
"""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.openai.errors import ServingError, invalid

_FAILURES = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a template may raise for messages it was not written for."""


class _Refusal(TemplateError):
    """The template itself called raise_exception; its sentence is for the client."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is only its contents."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # the base class says set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(str(message))


def _strftime_now(format_: str) -> str:
    return datetime.now().astimezone().strftime(format_)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Any: whatever a template holds. The positional order is what templates rely on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """A compiled template; `variables` are the names it expects from outside, which says whether it has a place for tools."""

    def __init__(self, source: str) -> None:
        environment = _environment()
        try:
            self.variables = meta.find_undeclared_variables(environment.parse(source))
            self._template: Template = environment.from_string(source)
        except _FAILURES as error:
            raise invalid("The model's chat template cannot be compiled.", "messages") from error

    def render(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        """The prompt's text. A template that fails on these messages is a 400 that says so."""
        try:
            return self._template.render(variables, messages=messages)
        except _FAILURES as error:
            raise _failure(error) from error


def _failure(error: Exception) -> ServingError:
    if isinstance(error, _Refusal):
        return invalid(f"The model's chat template refuses these messages: {error.message}", "messages")
    return invalid("The model's chat template cannot render these messages.", "messages")


@lru_cache(maxsize=8)
def chat_template(source: str) -> ChatTemplate:
    """The template for a source, compiled once. A model without one is a 400 that names the way out."""
    if not source:
        raise invalid("This model has no chat template; use /v1/completions.", "messages")
    return ChatTemplate(source)
