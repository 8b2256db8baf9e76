"""A small value that fits a JSON Schema: what the scripted engine says when it is held to one.

Only required properties and the fewest items; of alternatives the first. Keywords it cannot honour are refused, not ignored.
"""

import math
from typing import Any, Final

_REFUSED: Final = (
    "pattern", "not", "if", "contains", "patternProperties", "propertyNames", "dependentRequired", "dependentSchemas",
    "minProperties", "uniqueItems", "unevaluatedProperties", "$dynamicRef",
)  # fmt: skip
_FORMATS: Final = {
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "email": "relay@example.com",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "uri": "https://example.com/relay",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "hostname": "example.com",
}
_MAX_DEPTH: Final = 32


class NoInstance(ValueError):
    """The schema has no value, or none that can be found here."""


def instance_of(schema: Any, word: str) -> Any:
    """A value for the schema; texts in it are made of `word`. Any: schemas and their values are JSON."""
    return _Maker(schema, word).make(schema, 0)


class _Maker:
    def __init__(self, root: Any, word: str) -> None:
        self._root = root
        self._word = word

    def make(self, schema: Any, depth: int) -> Any:
        if schema is True or schema == {}:
            return self._word
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            raise NoInstance("The schema has no finite value.")
        for keyword in _REFUSED:
            if schema.get(keyword) not in (None, False):
                raise NoInstance(f"Schemas with '{keyword}' are not supported.")
        chosen = self._alternative(schema)
        if chosen is not None:
            return self.make(chosen, depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._first(schema["enum"])
        return self._typed(schema, depth)

    def _alternative(self, schema: dict[str, Any]) -> dict[str, Any] | None:
        """The schema with its reference followed, or its first alternative taken, None if it has neither."""
        if "$ref" in schema:
            return self._merged([_without(schema, "$ref"), self._referred(schema["$ref"])])
        if "allOf" in schema:
            return self._merged([_without(schema, "allOf"), *schema["allOf"]])
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._merged([_without(schema, keyword), self._first(schema[keyword])])
        return None

    def _first(self, values: list[Any]) -> Any:
        if not values:
            raise NoInstance("The schema allows nothing.")
        return values[0]

    def _referred(self, reference: str) -> Any:
        target: Any = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or name not in target:
                raise NoInstance(f"The schema's reference {reference} leads nowhere.")
            target = target[name]
        return target

    def _merged(self, schemas: list[Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for schema in schemas:
            if schema is False:
                raise NoInstance("The schema allows nothing.")
            for key, value in ({} if schema is True else schema).items():
                if key == "properties":
                    value = {**made.get(key, {}), **value}
                elif key == "required":
                    value = [*made.get(key, []), *value]
                made[key] = value
        return made

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        kind = schema.get("type", _implied_type(schema))
        if isinstance(kind, list):
            kind = self._first(kind)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind in ("integer", "number"):
            return _number(schema, whole=kind == "integer")
        if kind == "string":
            return self._string(schema)
        return False if kind == "boolean" else None

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        names = [name for name in properties if name in required]
        more = [name for name in dict.fromkeys(required) if name not in properties]
        other = schema.get("additionalProperties", True)
        made = {name: self.make(properties[name], depth + 1) for name in names}
        return made | {name: self.make(other, depth + 1) for name in more}

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        first = schema.get("prefixItems", [])
        count = schema.get("minItems", 0)
        if count > 1000:
            raise NoInstance("The schema asks for more than 1000 items.")
        schemas = [*first, *[schema.get("items", True)] * count][:count]
        return [self.make(item, depth + 1) for item in schemas]

    def _string(self, schema: dict[str, Any]) -> str:
        least: int = schema.get("minLength", 0)
        most: int = schema.get("maxLength", 10_000)
        if least > most or least > 10_000:
            raise NoInstance("The schema asks for a text of no possible length.")
        text = _FORMATS.get(schema.get("format", ""), self._word)
        return (text + self._word * math.ceil(max(0, least - len(text)) / len(self._word)))[
            : max(least, min(most, len(text)))
        ]


def _without(schema: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != name}


def _implied_type(schema: dict[str, Any]) -> str:
    """The type of a schema that names none, by its other keywords."""
    for kind, keywords in {
        "object": ("properties", "required", "additionalProperties"),
        "array": ("items", "prefixItems", "minItems"),
        "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    }.items():
        if any(keyword in schema for keyword in keywords):
            return kind
    return "string"


def _number(schema: dict[str, Any], *, whole: bool) -> int | float:
    """The number nearest to zero that fits."""
    step = schema.get("multipleOf", 1 if whole else 0.5)
    least, most = _bounds(schema, step)
    value = step * math.ceil(least / step) if least > 0 else step * math.floor(most / step) if most < 0 else 0
    if not least <= value <= most:
        raise NoInstance("The schema's bounds leave no number.")
    return int(value) if whole else value


def _bounds(schema: dict[str, Any], step: float) -> tuple[float, float]:
    least: float = schema.get("minimum", -math.inf)
    most: float = schema.get("maximum", math.inf)
    if "exclusiveMinimum" in schema:
        least = max(least, schema["exclusiveMinimum"] + step)
    if "exclusiveMaximum" in schema:
        most = min(most, schema["exclusiveMaximum"] - step)
    return least, most
