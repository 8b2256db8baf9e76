"""What `response_format` asks for, as the form an engine forces the output into."""

import json
from typing import Any

from msgspec import UnsetType

from schemas.openai.errors import invalid
from schemas.openai.options import JsonSchemaFormat, ResponseFormat
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
        return Constraint(kind="regex", text=_text(format_.regex, "regex"))
    if format_.type == "ebnf":
        require(facts, Capability.GRAMMAR, _FIELD)
        return Constraint(kind="grammar", text=_text(format_.ebnf, "ebnf"))
    require(facts, Capability.JSON, _FIELD)
    if format_.type == "json_schema":
        return _schema(_inner(format_.json_schema), f"{_FIELD}.json_schema.schema")
    if isinstance(format_.schema, dict):
        return _schema(format_.schema, f"{_FIELD}.schema")
    return Constraint(kind="json_object")


def _inner(format_: JsonSchemaFormat | None | UnsetType) -> Any:
    """The schema inside `json_schema`. Any: it is the client's own JSON."""
    if not isinstance(format_, JsonSchemaFormat):
        raise invalid(f"'{_FIELD}' of type json_schema needs 'json_schema'.", f"{_FIELD}.json_schema")
    if format_.schema is None or isinstance(format_.schema, UnsetType):
        raise invalid(f"'{_FIELD}.json_schema' needs 'schema'.", f"{_FIELD}.json_schema.schema")
    return format_.schema


def _schema(schema: Any, param: str) -> Constraint:
    check_nesting(schema, param)
    check_schema(schema, param)
    if schema is False:
        raise invalid(f"Invalid value for '{param}': no value fits the schema false.", param)
    return Constraint(kind="json_schema", text=json.dumps({} if schema is True else schema, ensure_ascii=False))


def _text(value: str | None | UnsetType, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(f"'{_FIELD}' of type {name} needs '{name}'.", f"{_FIELD}.{name}")
    return value
