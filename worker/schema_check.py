"""JSON Schemas that clients send, looked at before an engine has to compile them."""

from collections.abc import Iterable
from typing import Any, Final

from schemas.openai.errors import invalid

MAX_DEPTH: Final = 64
"""How deep schemas may be nested."""
MAX_NESTING: Final = 200
"""How deep any JSON value may be nested that is written out again, schema or not."""

_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_NAMED_PARTS = ("properties", "patternProperties", "$defs", "definitions")
_LISTED_PARTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE_PARTS = ("items", "additionalProperties", "not", "contains")


def check_nesting(value: Any, param: str) -> None:
    """Refuse JSON nested so deeply that writing it out again could fail. Any: the value is the client's own JSON."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise invalid(f"Invalid value for '{param}': it is nested more than {MAX_NESTING} levels deep.", param)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def check_schema(schema: Any, param: str, depth: int = 0) -> None:
    """Refuse what is no JSON Schema: a part that is neither object nor boolean, an unknown type, nesting beyond MAX_DEPTH.

    Any: the value is the client's own JSON.
    """
    if depth > MAX_DEPTH:
        raise invalid(f"Invalid value for '{param}': the schema is nested more than {MAX_DEPTH} levels deep.", param)
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise invalid(f"Invalid value for '{param}': a JSON Schema is an object or a boolean.", param)
    _check_type(schema.get("type"), param)
    for part in _parts(schema, param):
        check_schema(part, param, depth + 1)


def _check_type(value: Any, param: str) -> None:
    for name in value if isinstance(value, list) else [value]:
        if name is not None and (not isinstance(name, str) or name not in _TYPES):
            known = ", ".join(sorted(_TYPES))
            raise invalid(f"Invalid value for '{param}': a schema's 'type' is one of {known}.", param)


def _parts(schema: dict[str, Any], param: str) -> list[Any]:
    parts = [schema[name] for name in _SINGLE_PARTS if name in schema and not isinstance(schema[name], list)]
    for name in _NAMED_PARTS:
        parts += _expected(schema.get(name, {}), dict, name, param).values()
    for name in _LISTED_PARTS:
        parts += _expected(schema.get(name, []), list, name, param)
    return parts


def _expected(value: Any, type_: type[Any], name: str, param: str) -> Any:
    if not isinstance(value, type_):
        raise invalid(f"Invalid value for '{param}': '{name}' of a schema is not of the right type.", param)
    return value
