"""What must not reach llama.cpp: grammars that can get stuck, loop, or are too large."""

from collections.abc import Iterator
from typing import Final

from worker.engines.llama_cpp.grammar import characters
from worker.engines.llama_cpp.grammar.characters import NOTHING, Ranges
from worker.engines.llama_cpp.grammar.tree import (
    EMPTY,
    ROOT,
    Chars,
    Choice,
    Concat,
    Grammar,
    Island,
    Node,
    Repeat,
    Rule,
    Unsupported,
    children,
)

MAX_NODES: Final = 50_000
MAX_COMPILED: Final = 100_000
"""Elements llama.cpp may have to build, where it writes repetitions out."""


def nodes_of(node: Node) -> Iterator[Node]:
    """The node and everything in it; rules are not entered."""
    open_nodes = [node]
    while open_nodes:
        found = open_nodes.pop()
        yield found
        open_nodes.extend(children(found))


def rules_in(node: Node) -> set[str]:
    """The rules a node names."""
    return {found.name for found in nodes_of(node) if isinstance(found, Rule)}


def reachable(grammar: Grammar) -> Grammar:
    """The rules that `root` needs, itself first. Raises Unsupported for one that is not there, or for too many nodes."""
    found: Grammar = {}
    wanted = [ROOT]
    size = 0
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        if name not in grammar:
            raise Unsupported(f"The grammar has no rule {name!r}.")
        found[name] = grammar[name]
        size += sum(1 for _ in nodes_of(grammar[name]))
        if size > MAX_NODES:
            raise Unsupported("The constraint is too large.")
        wanted.extend(sorted(rules_in(grammar[name]), reverse=True))
    return found


def speakable(node: Node, spoken: Ranges) -> Node:
    """The node, without the characters that the model has no bytes for."""
    match node:
        case Chars(ranges):
            return Chars(characters.intersection(ranges, spoken))
        case Concat(parts):
            return Concat(tuple(speakable(part, spoken) for part in parts))
        case Choice(options):
            return Choice(tuple(speakable(option, spoken) for option in options))
        case Repeat(inner, least, most):
            return EMPTY if most == 0 else Repeat(speakable(inner, spoken), least, most)
        case Island(inner):
            return Island(speakable(inner, spoken))
        case _:
            return node


def check_completable(grammar: Grammar) -> None:
    """Every part of every rule can be completed. So whatever text has begun to fit, there is a way to go on."""
    known: set[str] = set()
    while found := {name for name in grammar if name not in known and _completable(grammar[name], known)}:
        known |= found
    for rule in grammar.values():
        for node in nodes_of(rule):
            if not _completable(node, known):
                raise Unsupported("A part of the constraint can never be completed.")


def _completable(node: Node, known: set[str]) -> bool:
    match node:
        case Chars(ranges):
            return ranges != NOTHING
        case Concat(parts):
            return all(_completable(part, known) for part in parts)
        case Choice(options):
            return any(_completable(option, known) for option in options)
        case Repeat(inner) | Island(inner):
            return _completable(inner, known)
        case Rule(name):
            return name in known


class Beginnings:
    """What each part of a grammar can begin with, and whether it can be empty."""

    def __init__(self, grammar: Grammar) -> None:
        self._empty: set[str] = set()
        self._first: dict[str, Ranges] = dict.fromkeys(grammar, NOTHING)
        changed = True
        while changed:
            changed = False
            for name, node in grammar.items():
                if name not in self._empty and self.can_be_empty(node):
                    self._empty.add(name)
                    changed = True
                first = self.of(node)
                if first != self._first[name]:
                    self._first[name] = first
                    changed = True

    def can_be_empty(self, node: Node) -> bool:
        """Whether it can be nothing."""
        match node:
            case Chars():
                return False
            case Concat(parts):
                return all(self.can_be_empty(part) for part in parts)
            case Choice(options):
                return any(self.can_be_empty(option) for option in options)
            case Repeat(inner, least, _):
                return least == 0 or self.can_be_empty(inner)
            case Island(inner):
                return self.can_be_empty(inner)
            case Rule(name):
                return name in self._empty

    def of(self, node: Node) -> Ranges:
        """The characters it can begin with."""
        match node:
            case Chars(ranges):
                return ranges
            case Concat(parts):
                return self._of_sequence(parts)
            case Choice(options):
                return characters.union(*(self.of(option) for option in options))
            case Repeat(inner) | Island(inner):
                return self.of(inner)
            case Rule(name):
                return self._first[name]

    def after(self, node: Node, follow: Ranges) -> Ranges:
        """The characters it can begin with, given those that can come if it is nothing."""
        return characters.union(self.of(node), follow) if self.can_be_empty(node) else self.of(node)

    def _of_sequence(self, parts: tuple[Node, ...]) -> Ranges:
        found = NOTHING
        for part in parts:
            found = characters.union(found, self.of(part))
            if not self.can_be_empty(part):
                break
        return found


def check_loops(grammar: Grammar, beginnings: Beginnings) -> None:
    """No rule comes back to itself without a character in between."""
    edges = {name: _leading_rules(node, beginnings) for name, node in grammar.items()}
    if any(name in _reached(edges, name) for name in grammar):
        raise Unsupported("A rule of the constraint leads back to itself without a character in between.")


def _leading_rules(node: Node, beginnings: Beginnings) -> set[str]:
    """The rules that can stand at the very beginning."""
    match node:
        case Rule(name):
            return {name}
        case Concat(parts):
            found: set[str] = set()
            for part in parts:
                found |= _leading_rules(part, beginnings)
                if not beginnings.can_be_empty(part):
                    break
            return found
        case _:
            return {name for child in children(node) for name in _leading_rules(child, beginnings)}


def _reached(edges: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    wanted = list(edges[start])
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted.extend(edges[name])
    return found


def check_size(grammar: Grammar) -> None:
    """llama.cpp writes bounded repetitions out; all of it must have room."""
    if sum(map(_elements, grammar.values())) > MAX_COMPILED:
        raise Unsupported("The constraint is too large: its bounded repetitions multiply.")


def _elements(node: Node) -> int:
    inside = max(1, sum(map(_elements, children(node))))
    return inside * max(1, node.most or node.least) if isinstance(node, Repeat) else inside
