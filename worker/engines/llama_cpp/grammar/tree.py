"""What a grammar is made of. Trees are values: equal parts are equal, wherever they came from."""

from typing import Final

from msgspec import Struct

from worker.engines.llama_cpp.grammar import characters
from worker.engines.llama_cpp.grammar.characters import Ranges

ROOT: Final = "root"
MAX_TIMES: Final = 10_000
"""How often something may be repeated, if the number of times has a limit."""


class Unsupported(ValueError):
    """The constraint cannot be enforced. The message is a sentence for the client."""


class Chars(Struct, frozen=True):
    """One character of a set."""

    ranges: Ranges


class Concat(Struct, frozen=True):
    """All parts, one after another. No parts: nothing at all, which is always there."""

    parts: tuple["Node", ...] = ()


class Choice(Struct, frozen=True):
    """One of the options. No options: nothing fits."""

    options: tuple["Node", ...]


class Repeat(Struct, frozen=True):
    """The node, `least` to `most` times; None is without end."""

    node: "Node"
    least: int = 0
    most: int | None = None


class Rule(Struct, frozen=True):
    """What the grammar has under a name."""

    name: str


class Island(Struct, frozen=True):
    """A part that ends with its surroundings: what follows cannot be mistaken for more of it. Its ambiguity stays inside."""

    node: "Node"


Node = Chars | Concat | Choice | Repeat | Rule | Island
Grammar = dict[str, Node]
"""Rules by name; the whole text is `root`."""

EMPTY: Final = Concat()


def text(literal: str) -> Concat:
    """The text itself."""
    return Concat(tuple(Chars(characters.of(character)) for character in literal))


def concat(*nodes: Node) -> Node:
    """One after another, flat."""
    parts: list[Node] = []
    for node in nodes:
        parts.extend(node.parts if isinstance(node, Concat) else [node])
    return parts[0] if len(parts) == 1 else Concat(tuple(parts))


def choice(*nodes: Node) -> Node:
    """One of them, flat, each once."""
    options: dict[Node, None] = {}
    for node in nodes:
        options.update(dict.fromkeys(node.options if isinstance(node, Choice) else [node]))
    return next(iter(options)) if len(options) == 1 else Choice(tuple(options))


def optional(node: Node) -> Node:
    """It, or nothing."""
    return Repeat(node, 0, 1)


def parts_of(node: Node) -> tuple[Node, ...]:
    """The node as a sequence."""
    return node.parts if isinstance(node, Concat) else (node,)


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly inside."""
    match node:
        case Concat(parts):
            return parts
        case Choice(options):
            return options
        case Repeat(inner) | Island(inner):
            return (inner,)
        case _:
            return ()


def repeat(node: Node, least: int, most: int | None) -> Repeat:
    """A repetition whose numbers somebody else wrote."""
    if most is not None and most < least:
        raise Unsupported(f"Nothing can be repeated at least {least} and at most {most} times.")
    if max(least, most or 0) > MAX_TIMES:
        raise Unsupported(f"Limits of repetitions and lengths may be at most {MAX_TIMES}.")
    return Repeat(node, least, most)


def class_of(ranges: list[tuple[int, int]], *, negated: bool) -> Ranges:
    """The set that a class in brackets means."""
    if any(low > high for low, high in ranges):
        raise Unsupported("A range of characters begins after its end.")
    found = characters.merged(ranges)
    return characters.complement(found) if negated else found
