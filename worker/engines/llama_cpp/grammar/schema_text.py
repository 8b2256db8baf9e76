"""Texts of JSON Schemas: lengths, patterns, formats."""

from collections.abc import Callable
from typing import Any, Final

from worker.engines.llama_cpp.grammar import json_values, regex
from worker.engines.llama_cpp.grammar.tree import (
    Chars,
    Choice,
    Concat,
    Island,
    Node,
    Repeat,
    Unsupported,
    concat,
    repeat,
)

_OCTET: Final = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_LABEL: Final = r"[a-z0-9]{1,20}(?:-[a-z0-9]{1,20})?"
_DATE: Final = (
    r"[1-9]\d{3}-"
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
)
_TIME: Final = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:0\d|1[0-4]):[0-5]\d)"
FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
    "email": rf"[a-z0-9]{{1,20}}(?:[._+-][a-z0-9]{{1,20}}){{0,2}}@{_LABEL}(?:\.{_LABEL}){{1,4}}",
    "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,4}}",
    "ipv4": rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}",
    "uri": rf"https?://{_LABEL}(?:\.{_LABEL}){{0,4}}(?:/[A-Za-z0-9._~-]{{0,60}}){{0,8}}",
}
"""Formats that are enforced: a part of each, as expressions."""


def text_node(schema: dict[str, Any]) -> Node:
    """The texts that fit a schema. Any: it is the client's JSON."""
    least, most = _length(schema, "minLength") or 0, _length(schema, "maxLength")
    pattern, format_ = schema.get("pattern"), schema.get("format")
    if most is not None and most < least:
        raise Unsupported("The schema's bounds leave no text.")
    if pattern is None and format_ is None and (least, most) == (0, None):
        return json_values.STRING
    if pattern is None and format_ is None:
        return json_values.quoted(repeat(json_values.ANY_CHARACTER, least, most))
    if pattern is not None and format_ is not None:
        raise Unsupported("'pattern' and 'format' of one schema cannot be enforced together.")
    expression = _pattern(pattern) if pattern is not None else _format(format_)
    _check_length(expression, least, most)
    return json_values.quoted(Island(_unanchored(regex.parse(expression, json_values.spelled))))


def _pattern(pattern: Any) -> str:
    if not isinstance(pattern, str):
        raise Unsupported("'pattern' is a regular expression.")
    return pattern


def _format(format_: Any) -> str:
    if not isinstance(format_, str) or format_ not in FORMATS:
        known = ", ".join(FORMATS)
        raise Unsupported(f"A 'format' of the schema cannot be enforced; those that can are {known}.")
    return f"^{FORMATS[format_]}$"


def _unanchored(pattern: regex.Pattern) -> Node:
    """JSON Schema's patterns may match anywhere in the text."""
    anything = Repeat(json_values.ANY_CHARACTER)
    before = concat() if pattern.from_start else anything
    after = concat() if pattern.to_end else anything
    return concat(before, pattern.node, after)


def _length(schema: dict[str, Any], name: str) -> int | None:
    value = schema.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise Unsupported(f"'{name}' is a whole number from 0 on.")
    return value


def _check_length(expression: str, least: int, most: int | None) -> None:
    """Both can be enforced only where the expression alone keeps to the bounds."""
    pattern = regex.parse(expression)
    shortest, longest = extent(pattern.node)
    if not (pattern.from_start and pattern.to_end):
        longest = None
    if shortest < least or (most is not None and (longest is None or longest > most)):
        raise Unsupported(
            "'minLength' and 'maxLength' cannot be enforced beside a 'pattern' or 'format' that does not imply them."
        )


def extent(node: Node) -> tuple[int, int | None]:
    """The fewest and the most characters a part has; None is no limit."""
    match node:
        case Chars():
            return 1, 1
        case Concat(parts):
            extents = [extent(part) for part in parts]
            return sum(low for low, _ in extents), _limit(sum, [high for _, high in extents])
        case Choice(options):
            extents = [extent(option) for option in options]
            return min(low for low, _ in extents), _limit(max, [high for _, high in extents])
        case Repeat(inner, least, most):
            low, high = extent(inner)
            return low * least, high * most if high is not None and most is not None else None
        case _:
            raise TypeError(f"{type(node).__name__} is no part of a regular expression.")


def _limit(combine: Callable[[list[int]], int], highs: list[int | None]) -> int | None:
    known = [high for high in highs if high is not None]
    return combine(known) if len(known) == len(highs) else None
