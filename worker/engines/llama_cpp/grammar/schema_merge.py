"""Several JSON Schemas that hold at once, as one; and whether two can hold at once at all."""

from typing import Any, Final

from worker.engines.llama_cpp.grammar.tree import Unsupported

Schema = dict[str, Any]
"""Any: it is the client's JSON."""

ANNOTATIONS: Final = frozenset(
    {
        "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment", "$schema",
        "$id", "id", "$defs", "definitions", "contentMediaType", "contentEncoding", "discriminator", "externalDocs", "xml",
    }
)  # fmt: skip
"""Keywords that say nothing about what fits."""
TYPES: Final = ("object", "array", "string", "number", "boolean", "null")
"""All of them; an integer is a number."""
_KEYWORDS_OF: Final[dict[str, set[str]]] = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}


def types_of(schema: Schema) -> tuple[str, ...]:
    """The types that fit. Without `type`, keywords that speak of one type mean that type: a choice among what the schema allows."""
    named = schema.get("type")
    if isinstance(named, list):
        return tuple(kind for kind in dict.fromkeys(named) if kind != "integer" or "number" not in named)
    if named is not None:
        return (named,)
    implied = [kind for kind, keywords in _KEYWORDS_OF.items() if keywords & schema.keys()]
    return tuple(implied) or TYPES


def assertions(schema: Schema) -> Schema:
    """The schema without annotations."""
    return {key: value for key, value in schema.items() if key not in ANNOTATIONS}


def merged(one: Schema, other: Schema) -> Schema:
    """What fits both. Raises Unsupported where that cannot be said in one schema."""
    made = dict(assertions(one))
    for key, value in assertions(other).items():
        made[key] = _both(key, made[key], value) if key in made else value
    for closed, open_ in ((one, other), (other, one)):
        if closed.get("additionalProperties", True) is not True and open_.get("properties", {}).keys() - closed.get(
            "properties", {}
        ):
            raise Unsupported("Schemas that hold at once must not close each other's properties.")
    return made


def _both(key: str, one: Any, other: Any) -> Any:
    if one == other and type(one) is type(other):
        return one
    if key == "required":
        return [*one, *(name for name in other if name not in one)]
    if key == "properties":
        return _both_properties(one, other)
    if key == "type":
        return _both_types(one, other)
    raise Unsupported(f"Schemas that hold at once must not both have {key!r}.")


def _both_properties(one: Schema, other: Schema) -> Schema:
    made = dict(one)
    for name, schema in other.items():
        made[name] = {"allOf": [made[name], schema]} if name in made else schema
    return made


def _both_types(one: Any, other: Any) -> Any:
    ours, theirs = types_of({"type": one}), types_of({"type": other})
    kinds = [kind for kind in ours if kind in theirs or (kind == "integer" and "number" in theirs)]
    kinds += ["integer"] if "integer" in theirs and "number" in ours and "integer" not in kinds else []
    if not kinds:
        raise Unsupported("The schema's types leave nothing that fits.")
    return kinds


def exclude(one: Schema, other: Schema) -> bool:
    """Whether it is certain that nothing fits both. References must have been resolved."""
    ours, theirs = _values(one), _values(other)
    if ours is not None and theirs is not None:
        return not any(_same(value, theirs_too) for value in ours for theirs_too in theirs)
    if not set(map(_kind, types_of(one))) & set(map(_kind, types_of(other))):
        return True
    shared = set(one.get("required", ())) & set(other.get("required", ()))
    pairs = ((one.get("properties", {}).get(name), other.get("properties", {}).get(name)) for name in shared)
    only_objects = types_of(one) == types_of(other) == ("object",)
    return only_objects and any(isinstance(a, dict) and isinstance(b, dict) and exclude(a, b) for a, b in pairs)


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) else None


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON values: true is not 1, and 1 is 1.0."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _kind(name: str) -> str:
    return "number" if name == "integer" else name
