"""Numbers of JSON Schemas."""

from collections.abc import Callable
from typing import Any

from worker.engines.llama_cpp.grammar import json_values, number_range
from worker.engines.llama_cpp.grammar.schema_merge import Schema
from worker.engines.llama_cpp.grammar.tree import Node, Unsupported


def integer_node(schema: Schema) -> Node:
    """The integers that fit a schema."""
    low, above, high, below = _bounds(schema, whole_steps=True)
    if low is None and high is None:
        return json_values.INTEGER
    first = low + 1 if low is not None and above else low
    last = high - 1 if high is not None and below else high
    return number_range.whole_numbers(first, last)


def number_node(schema: Schema) -> Node:
    """The numbers that fit a schema."""
    low, above, high, below = _bounds(schema, whole_steps=False)
    if low is None and high is None:
        return json_values.NUMBER
    return number_range.numbers(low, high, above=above, below=below)


def _bounds(schema: Schema, *, whole_steps: bool) -> tuple[int | None, bool, int | None, bool]:
    """The lower bound and whether it is itself left out, then the upper one."""
    if "multipleOf" in schema and not (whole_steps and schema["multipleOf"] in (1, 1.0)):
        raise Unsupported("The schema's keyword 'multipleOf' cannot be enforced.")
    return *_stricter(schema, "minimum", "exclusiveMinimum", max), *_stricter(
        schema, "maximum", "exclusiveMaximum", min
    )


def _stricter(schema: Schema, closed: str, open_: str, better: Callable[[int, int], int]) -> tuple[int | None, bool]:
    """The stricter one of a bound that belongs and one that does not."""
    bounds = {name: _whole(schema[name], name) for name in (closed, open_) if name in schema}
    if not bounds:
        return None, False
    values = list(bounds.values())
    best = better(values[0], values[-1])
    return best, bounds.get(open_) == best


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e16 < value < 1e16:
        raise Unsupported(f"'{name}' is a number of at most 16 digits.")
    if value != int(value):
        raise Unsupported(f"'{name}' can be enforced for whole numbers only.")
    return int(value)
