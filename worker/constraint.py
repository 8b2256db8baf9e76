"""What `response_format` asks for, as the form an engine forces the output into."""

import json
from typing import Any

from msgspec import UnsetType

from schemas.openai.errors import invalid
from schemas.openai.options import ResponseFormat
from schemas.openai.rules import form_of
from worker.engines.base import Capability, Constraint, EngineFacts
from worker.fields import require, unsupported
from worker.schema_check import check_nesting, check_schema

_FIELD = "response_format"


def constraint_of(format_: ResponseFormat | None | UnsetType, facts: EngineFacts) -> Constraint | None:
    """The constraint, None for plain text. A kind the engine does not declare is refused, never dropped."""
    if not isinstance(format_, ResponseFormat) or format_.type == "text":
        return None
    if format_.type == "structural_tag":
        raise unsupported(_FIELD, "the type 'structural_tag' is not known here")
    if format_.type == "regex":
        require(facts, Capability.REGEX, _FIELD)
        return Constraint(kind="regex", text=form_of(format_))
    if format_.type == "ebnf":
        require(facts, Capability.GRAMMAR, _FIELD)
        return Constraint(kind="grammar", text=form_of(format_))
    require(facts, Capability.JSON, _FIELD)
    if format_.type == "json_schema":
        return _schema(form_of(format_), f"{_FIELD}.json_schema.schema")
    if isinstance(format_.schema, dict):
        return _schema(format_.schema, f"{_FIELD}.schema")
    return Constraint(kind="json_object")


def _schema(schema: Any, param: str) -> Constraint:
    check_nesting(schema, param)
    check_schema(schema, param)
    if schema is False:
        raise invalid(f"Invalid value for '{param}': no value fits the schema false.", param)
    return Constraint(kind="json_schema", text=json.dumps({} if schema is True else schema, ensure_ascii=False))
