"""Arrays of JSON Schemas."""

from typing import Any, Protocol

from worker.engines.llama_cpp.grammar import json_values
from worker.engines.llama_cpp.grammar.schema_merge import Schema
from worker.engines.llama_cpp.grammar.tree import Node, Unsupported, concat, repeat, text


class Reader(Protocol):
    """Reads the schemas inside."""

    def node(self, schema: Any) -> Node:
        """What fits a schema."""


def array_node(schema: Schema, reader: Reader) -> Node:
    """The arrays that fit a schema."""
    if schema.get("uniqueItems", False) is not False:
        raise Unsupported("The schema's keyword 'uniqueItems' cannot be enforced.")
    least, most = counts(schema, "minItems", "maxItems")
    first, other = _items(schema)
    if not first and other is False:
        most = 0
    if most is not None and most < least:
        raise Unsupported("The schema's bounds leave no array.")
    if first and most != 0:
        return _tuple(first[:most], other, least, most, reader)
    item = concat() if most == 0 else reader.node(other)
    return json_values.listed("[", "]", item, least, most)


def counts(schema: Schema, low: str, high: str) -> tuple[int, int | None]:
    """Two keywords that say how many there are."""
    least, most = schema.get(low, 0), schema.get(high)
    for value in (least, most):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise Unsupported(f"'{low}' and '{high}' are whole numbers from 0 on.")
    return least or 0, most


def _items(schema: Schema) -> tuple[list[Any], Any]:
    """The schemas of the first items, and that of all others. After first ones, others come only if they are spoken of."""
    other, first = schema.get("items", True), schema.get("prefixItems", [])
    if isinstance(other, list):
        return other, schema.get("additionalItems", False)
    if not isinstance(first, list):
        raise Unsupported("'prefixItems' is a list of schemas.")
    return first, schema.get("items", not first)


def _tuple(first: list[Any], other: Any, least: int, most: int | None, reader: Reader) -> Node:
    """All of the first items, and then others."""
    items = [concat(reader.node(item), json_values.SPACE) for item in first]
    comma = concat(text(","), json_values.SPACE)
    inner = concat(items[0], *(concat(comma, item) for item in items[1:]))
    needed = max(0, least - len(items))
    if other is not False:
        more = concat(comma, reader.node(other), json_values.SPACE)
        inner = concat(inner, repeat(more, needed, None if most is None else most - len(items)))
    elif needed:
        raise Unsupported("The schema's bounds leave no array.")
    return concat(text("["), json_values.SPACE, inner, text("]"))
