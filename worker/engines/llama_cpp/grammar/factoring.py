"""Alternatives rearranged: what they begin with in common is written once, so that the next character decides, where one can."""

from typing import Final

from worker.engines.llama_cpp.grammar.deciding import overlap
from worker.engines.llama_cpp.grammar.soundness import Beginnings
from worker.engines.llama_cpp.grammar.tree import (
    Choice,
    Concat,
    Grammar,
    Island,
    Node,
    Repeat,
    Rule,
    choice,
    concat,
    parts_of,
)

MAX_OPENED: Final = 5_000
"""Rules and groups that may be written out to find what alternatives have in common."""

Option = tuple[Node, ...]


class Factoring:
    """Rearranges a grammar, which then allows the same texts. Leaves alone what it cannot improve."""

    def __init__(self, grammar: Grammar, beginnings: Beginnings) -> None:
        self._grammar = grammar
        self._beginnings = beginnings
        self._opened = 0

    def grammar(self) -> Grammar:
        """All of its rules, rearranged."""
        return {name: self.node(node) for name, node in self._grammar.items()}

    def node(self, node: Node) -> Node:
        """One part, rearranged."""
        match node:
            case Concat(parts):
                return concat(*(self.node(part) for part in parts))
            case Choice(options):
                return self._choice([parts_of(option) for option in options])
            case Repeat(inner, _, 1) if self._beginnings.can_be_empty(inner):
                return self.node(inner)
            case Repeat(inner, least, most):
                return Repeat(self.node(inner), least, most)
            case Island(inner):
                return Island(self.node(inner))
            case _:
                return node

    def _choice(self, options: list[Option]) -> Node:
        groups = _grouped(options)
        while self._undecided(groups) and (opened := self._open(groups)) is not None:
            groups = _grouped(opened)
        if any(head is not None and self._can_be_empty(head, rests) for head, rests in groups.items()):
            groups.pop(None, None)
        return choice(*(self._group(head, rests) for head, rests in groups.items()))

    def _can_be_empty(self, head: Node, rests: list[Option]) -> bool:
        return any(self._beginnings.can_be_empty(Concat((head, *rest))) for rest in rests)

    def _group(self, head: Node | None, rests: list[Option]) -> Node:
        if head is None:
            return Concat()
        rest = concat(*map(self.node, rests[0])) if len(rests) == 1 else self._choice(rests)
        return concat(self.node(head), rest)

    def _undecided(self, groups: dict[Node | None, list[Option]]) -> bool:
        return overlap(
            self._beginnings.of(Concat((head, *rests[0]))) for head, rests in groups.items() if head is not None
        )

    def _open(self, groups: dict[Node | None, list[Option]]) -> list[Option] | None:
        """The options with their first rule, group or optional part written out; None if there is none, or enough was opened."""
        options: list[Option] = []
        found = False
        for head, rests in groups.items():
            fronts = None if head is None or self._opened > MAX_OPENED else self._inside(head)
            if fronts is None:
                options.extend(rest if head is None else (head, *rest) for rest in rests)
                continue
            found = True
            self._opened += len(fronts) * len(rests)
            options.extend((*front, *rest) for front in fronts for rest in rests)
        return options if found else None

    def _inside(self, head: Node) -> list[Option] | None:
        match head:
            case Rule(name):
                return [parts_of(self._grammar[name])]
            case Choice(options):
                return [parts_of(option) for option in options]
            case Repeat(inner, 0, 1):
                return [parts_of(inner), ()]
            case _:
                return None


def _grouped(options: list[Option]) -> dict[Node | None, list[Option]]:
    """The options by what stands first in them, None where they are empty; the rests behind it, each once."""
    groups: dict[Node | None, dict[Option, None]] = {}
    for option in options:
        head = option[0] if option else None
        groups.setdefault(head, {})[option[1:]] = None
    return {head: list(rests) for head, rests in groups.items()}
