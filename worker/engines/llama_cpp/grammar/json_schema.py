"""JSON Schemas as grammars: enforced, or refused by name, never dropped.

What is enforced: `type`, `properties`, `required`, `additionalProperties`, `items`, `prefixItems`, lengths and counts, `pattern`
and the formats of `schema_text`, bounds of integers, whole bounds of numbers, `enum`, `const`, `anyOf`, `allOf`, `oneOf` of schemas
that exclude each other, and `$ref` within the schema, recursive too. Properties come in the order of the schema; where there are
named ones, no others come. So not every value that fits can come, but every one that comes fits.
"""

import json
from collections.abc import Callable
from typing import Any, Final

from worker.engines.llama_cpp.grammar import json_values
from worker.engines.llama_cpp.grammar.schema_array import array_node
from worker.engines.llama_cpp.grammar.schema_merge import Schema, assertions, exclude, merged, types_of
from worker.engines.llama_cpp.grammar.schema_number import integer_node, number_node
from worker.engines.llama_cpp.grammar.schema_object import object_node
from worker.engines.llama_cpp.grammar.schema_text import text_node
from worker.engines.llama_cpp.grammar.tree import EMPTY, ROOT, Grammar, Node, Rule, Unsupported, choice

MAX_DEPTH: Final = 64
MAX_EXCLUSIVE: Final = 50
_REFUSED: Final = frozenset(
    {
        "not", "if", "then", "else", "contains", "minContains", "maxContains", "patternProperties", "propertyNames", "dependencies",
        "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef",
        "$anchor", "$dynamicAnchor", "$vocabulary", "nullable", "divisibleBy", "disallow", "extends",
    }
)  # fmt: skip
"""Keywords of some version of JSON Schema that cannot be enforced. Unknown ones say nothing, as the standard has it."""


def parse(source: str) -> Grammar:
    """The grammar of a schema, given as JSON text. Raises Unsupported."""
    try:
        schema = json.loads(source, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Unsupported("The schema is not JSON.") from error
    return SchemaReader(schema).grammar()


def _no_constant(name: str) -> None:
    raise ValueError(name)


class SchemaReader:
    """Reads one schema. The rules it needs gather on the way."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._rules: Grammar = {}
        self._names: dict[str, Rule] = {}
        self._depth = 0
        self._by_type: dict[str, Callable[[Schema], Node]] = {
            "object": lambda schema: object_node(schema, self),
            "array": lambda schema: array_node(schema, self),
            "string": text_node,
            "number": number_node,
            "integer": integer_node,
            "boolean": lambda _: json_values.BOOLEAN,
            "null": lambda _: json_values.NULL,
        }

    def grammar(self) -> Grammar:
        """All rules; the schema's own is `root`."""
        root = self.node(self._root)
        return {ROOT: root, **self._rules, **json_values.free_rules()}

    def node(self, schema: Any) -> Node:
        """What fits a schema. References become rules, so that they may come back to themselves."""
        if schema is True or schema == {}:
            return json_values.VALUE
        if not isinstance(schema, dict):
            raise Unsupported("The schema allows nothing in some place, or has a part that is no schema.")
        if assertions(schema).keys() == {"$ref"}:
            return self._referred(schema["$ref"])
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unsupported(f"The schema is nested more than {MAX_DEPTH} levels deep.")
        node = self._plain(self._combined(schema))
        self._depth -= 1
        return node

    def named(self, node: Node) -> Node:
        """A rule for a part that is used in several places."""
        if isinstance(node, Rule) or node == EMPTY:
            return node
        rule = Rule(f"part{len(self._rules)}")
        self._rules[rule.name] = node
        return rule

    def _referred(self, reference: Any) -> Rule:
        target = self._target(reference)
        if reference not in self._names:
            rule = self._names[reference] = Rule(f"ref{len(self._names)}")
            self._rules[rule.name] = self.node(target)
        return self._names[reference]

    def _target(self, reference: Any) -> Any:
        """What a `$ref` within the schema refers to."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise Unsupported("A '$ref' must lead to a part of the schema itself, as in '#/$defs/name'.")
        target = self._root
        for part in reference.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and name.isascii() and name.isdigit() and len(name) < 9:
                target = dict(enumerate(target)).get(int(name), False)
            elif isinstance(target, dict) and name in target:
                target = target[name]
            else:
                raise Unsupported("A '$ref' of the schema leads nowhere.")
        return target

    def _combined(self, schema: Schema, depth: int = 0) -> Schema:
        """The schema with what must hold beside it (`$ref` and `allOf`) merged into it."""
        for keyword in sorted(schema.keys() & _REFUSED):
            raise Unsupported(f"The schema's keyword '{keyword}' cannot be enforced.")
        if depth > MAX_DEPTH:
            raise Unsupported("The schema refers to itself without end.")
        beside = [self._target(schema["$ref"])] if "$ref" in schema else []
        beside += listed_schemas(schema, "allOf") if "allOf" in schema else []
        made = {key: value for key, value in assertions(schema).items() if key not in ("$ref", "allOf")}
        for other in beside:
            if not isinstance(other, dict | bool) or other is False:
                raise Unsupported("The schema allows nothing in some place, or has a part that is no schema.")
            made = made if other is True else merged(made, self._combined(other, depth + 1))
        return made

    def _plain(self, schema: Schema) -> Node:
        """What fits a schema without `$ref` and `allOf`."""
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                rest = {key: value for key, value in schema.items() if key != keyword}
                return self._alternatives(rest, listed_schemas(schema, keyword), exclusive=keyword == "oneOf")
        if "const" in schema or "enum" in schema:
            return _constants(schema)
        return choice(*(self._reader_of(kind)(schema) for kind in types_of(schema))) if schema else json_values.VALUE

    def _reader_of(self, kind: Any) -> Callable[[Schema], Node]:
        if not isinstance(kind, str) or kind not in self._by_type:
            raise Unsupported(f"The 'type' of a schema is one of {', '.join(self._by_type)}.")
        return self._by_type[kind]

    def _alternatives(self, rest: Schema, options: list[Any], *, exclusive: bool) -> Node:
        if exclusive:
            self._check_exclusive(rest, options)
        if not rest:
            return choice(*map(self.node, options))
        return choice(*(self.node({"allOf": [rest, option]}) for option in options))

    def _check_exclusive(self, rest: Schema, options: list[Any]) -> None:
        """`oneOf` is more than `anyOf` unless at most one can fit."""
        schemas = [merged(rest, self._resolved(option)) for option in options]
        pairs = [(one, other) for number, one in enumerate(schemas) for other in schemas[:number]]
        if len(options) > MAX_EXCLUSIVE or not all(exclude(one, other) for one, other in pairs):
            message = "The schemas of a 'oneOf' must exclude each other: by type, or by a required constant."
            raise Unsupported(message)

    def _resolved(self, schema: Any) -> Schema:
        return self._combined(schema) if isinstance(schema, dict) else {}


def listed_schemas(schema: Schema, keyword: str) -> list[Any]:
    """The schemas (or values) that a keyword lists: at least one."""
    found = schema[keyword]
    if not isinstance(found, list) or not found:
        raise Unsupported(f"'{keyword}' is a list that is not empty.")
    return found


def _constants(schema: Schema) -> Node:
    values = [schema["const"]] if "const" in schema else listed_schemas(schema, "enum")
    if schema.keys() - {"const", "enum", "type"} or {"const", "enum"} <= schema.keys():
        raise Unsupported("Beside 'enum' or 'const' a schema may only have 'type'.")
    fitting = [value for value in values if "type" not in schema or _is_of(value, types_of(schema))]
    if not fitting:
        raise Unsupported("No value of the schema's 'enum' is of its type.")
    return choice(*map(json_values.constant, fitting))


def _is_of(value: Any, kinds: tuple[str, ...]) -> bool:
    if isinstance(value, bool):
        return "boolean" in kinds
    if isinstance(value, int | float):
        return "number" in kinds or ("integer" in kinds and (isinstance(value, int) or value.is_integer()))
    return {str: "string", dict: "object", list: "array", type(None): "null"}[type(value)] in kinds
