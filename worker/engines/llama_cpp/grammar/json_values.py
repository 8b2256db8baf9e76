"""JSON as grammar: what values look like when nothing more is asked of them.

A subset of what JSON allows, and every text of it is JSON: white space is bounded, numbers have at most 16 digits before and after
the point, and escapes are the short ones and those of control characters.
"""

import json
from typing import Any, Final

from worker.engines.llama_cpp.grammar import characters
from worker.engines.llama_cpp.grammar.characters import Ranges
from worker.engines.llama_cpp.grammar.tree import (
    EMPTY,
    Chars,
    Grammar,
    Node,
    Repeat,
    Rule,
    Unsupported,
    choice,
    concat,
    optional,
    repeat,
    text,
)

SPACE: Final = Rule("space")
"""White space between the parts of a value."""
QUOTE: Final = text('"')
DIGIT: Final = Chars(((0x30, 0x39),))

_CONTROL: Final = ((0x00, 0x1F),)
PLAIN: Final = characters.complement(characters.union(_CONTROL, characters.of('"\\')))
"""The characters that a JSON text may hold as they are."""
_SHORT: Final = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}

VALUE: Final = Rule("value")
STRING: Final = Rule("string")
_OBJECT: Final = Rule("object")
_NULL, _TRUE, _FALSE = text("null"), text("true"), text("false")


def spelled(ranges: Ranges) -> Node:
    """One character of a set, as it is written inside a JSON text."""
    plain = characters.intersection(ranges, PLAIN)
    others = [chr(code) for low, high in characters.minus(ranges, PLAIN) for code in range(low, high + 1)]
    options: list[Node] = [Chars(plain)] if plain else []
    if others:
        options.append(concat(text("\\"), choice(*_escapes(others))))
    return choice(*options)


def _escapes(others: list[str]) -> list[Node]:
    """What stands behind the backslash, for characters that need one: a letter if there is one for it, else its number."""
    short = "".join(_SHORT[character] for character in others if character in _SHORT)
    options: list[Node] = [Chars(characters.of(short))] if short else []
    for sixteen in (0, 1):
        digits = [f"{ord(other) % 16:x}" for other in others if other not in _SHORT and ord(other) // 16 == sixteen]
        if digits:
            options.append(concat(text(f"u00{sixteen}"), Chars(characters.of("".join(digits)))))
    return options


ANY_CHARACTER: Final = choice(
    Chars(PLAIN),
    concat(
        text("\\"),
        choice(
            Chars(characters.of('"\\/bfnrt')),
            concat(text("u00"), Chars(characters.of("01")), Chars(characters.of("0123456789abcdefABCDEF"))),
        ),
    ),
)
"""One character of a JSON text, written either way."""


def quoted(node: Node) -> Node:
    """A JSON text with this content."""
    return concat(QUOTE, node, QUOTE)


WHOLE: Final = choice(text("0"), concat(Chars(((0x31, 0x39),)), Repeat(DIGIT, 0, 15)))
FRACTION: Final = concat(text("."), Repeat(DIGIT, 1, 16))
_EXPONENT: Final = concat(Chars(characters.of("eE")), optional(Chars(characters.of("+-"))), Repeat(DIGIT, 1, 2))
INTEGER: Final = concat(optional(text("-")), WHOLE)
NUMBER: Final = concat(INTEGER, optional(FRACTION), optional(_EXPONENT))
BOOLEAN: Final = choice(_TRUE, _FALSE)
NULL: Final = _NULL


def listed(opening: str, closing: str, item: Node, least: int = 0, most: int | None = None) -> Node:
    """Items between brackets, with commas."""
    if most == 0:
        return concat(text(opening), SPACE, text(closing))
    more = repeat(concat(text(","), SPACE, item, SPACE), max(0, least - 1), None if most is None else most - 1)
    some = concat(item, SPACE, more if most != 1 else EMPTY)
    return concat(text(opening), SPACE, optional(some) if least == 0 else some, text(closing))


def entry(key: Node, value: Node) -> Node:
    """A key and its value."""
    return concat(key, text(":"), SPACE, value)


def free_rules() -> Grammar:
    """The rules that everything here refers to: any value, any object, any text, and white space."""
    return {
        VALUE.name: choice(STRING, NUMBER, BOOLEAN, NULL, _OBJECT, listed("[", "]", VALUE)),
        _OBJECT.name: listed("{", "}", entry(STRING, VALUE)),
        STRING.name: quoted(Repeat(ANY_CHARACTER)),
        SPACE.name: choice(EMPTY, text(" "), concat(text("\n"), Repeat(Chars(characters.of(" \t")), 0, 20))),
    }


def any_object() -> Node:
    """Any JSON object, by the rules of `free_rules`."""
    return _OBJECT


def constant(value: Any) -> Node:
    """One value, written without white space. Any: it is JSON."""
    try:
        return text(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False))
    except ValueError as error:
        raise Unsupported("The schema has a value that JSON cannot write.") from error
