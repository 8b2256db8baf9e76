"""Objects of JSON Schemas."""

from typing import Any, Final, Protocol

from worker.engines.llama_cpp.grammar import json_values
from worker.engines.llama_cpp.grammar.schema_array import counts
from worker.engines.llama_cpp.grammar.schema_merge import Schema
from worker.engines.llama_cpp.grammar.tree import EMPTY, Node, Unsupported, choice, concat, text

MAX_PROPERTIES: Final = 200


class Reader(Protocol):
    """Reads the schemas inside."""

    def node(self, schema: Any) -> Node:
        """What fits a schema."""

    def named(self, node: Node) -> Node:
        """A rule for a part that is used in several places."""


def object_node(schema: Schema, reader: Reader) -> Node:
    """The objects that fit a schema."""
    properties, required = schema.get("properties", {}), _names(schema)
    other = schema.get("additionalProperties", True)
    if not isinstance(properties, dict) or len(properties) + len(required) > MAX_PROPERTIES:
        raise Unsupported(f"The 'properties' of a schema are an object with at most {MAX_PROPERTIES} members.")
    # Names that are only required: whatever the schema says of all other properties.
    properties = properties | {name: other for name in required if name not in properties}
    least, most = counts(schema, "minProperties", "maxProperties")
    if not properties:
        return _free(other, least, most, reader)
    if least > len(required) or (most is not None and most < len(properties)):
        message = "'minProperties' and 'maxProperties' are supported for objects without 'properties' only."
        raise Unsupported(message)
    return _named(properties, set(required), reader)


def _free(other: Any, least: int, most: int | None, reader: Reader) -> Node:
    """Objects with any names."""
    most = 0 if other is False else most
    if least > 1 or (most is not None and most < least):
        # The same name may come twice, and counts once.
        raise Unsupported("'minProperties' above 1 is not supported.")
    if other is True and (least, most) == (0, None):
        return json_values.any_object()
    value = json_values.VALUE if most == 0 else reader.node(other)
    return json_values.listed("{", "}", json_values.entry(json_values.STRING, value), least, most)


def _named(properties: Schema, required: set[str], reader: Reader) -> Node:
    """The properties in their order. What may come next depends on whether there was one before, as a comma stands between."""
    first: list[Node] = [EMPTY]  # What can come from here on if nothing stands before it.
    later: list[Node] = [EMPTY]  # And if something does.
    for name, schema in reversed(properties.items()):
        value = reader.named(reader.node(schema))
        rest = reader.named(choice(*later))
        entry = concat(json_values.entry(json_values.constant(name), value), json_values.SPACE, rest)
        after = concat(text(","), json_values.SPACE, entry)
        optional = name not in required
        first, later = [entry, *(first if optional else [])], [after, *(later if optional else [])]
    return concat(text("{"), json_values.SPACE, choice(*first), text("}"))


def _names(schema: Schema) -> list[str]:
    found = schema.get("required", [])
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise Unsupported("'required' is a list of names.")
    return list(dict.fromkeys(found))
