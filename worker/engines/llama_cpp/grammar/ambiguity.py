"""How many possibilities a grammar keeps open. llama.cpp follows all of them at once, for every token of the vocabulary."""

from collections.abc import Iterable, Iterator
from itertools import chain

from worker.engines.llama_cpp.grammar import characters
from worker.engines.llama_cpp.grammar.characters import NOTHING, Ranges
from worker.engines.llama_cpp.grammar.soundness import MAX_AMBIGUOUS, MAX_COMPILED, Beginnings, rules_in
from worker.engines.llama_cpp.grammar.tree import (
    ROOT,
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

_TOO_AMBIGUOUS = (
    "The constraint leaves too many possibilities open: where it is long or recursive, the next character must decide between its "
    "alternatives, and whether a repetition goes on."
)


def check_size(grammar: Grammar) -> None:
    """llama.cpp writes bounded repetitions out; all of it must have room."""
    if sum(_places(node, {}) for node in grammar.values()) > MAX_COMPILED:
        raise Unsupported("The constraint is too large: its bounded repetitions multiply.")


def check_ambiguity(grammar: Grammar, beginnings: Beginnings) -> None:
    """One character decides wherever it matters; what is left open is small and does not recur."""
    sizes = _Sizes(grammar)
    follows = _follows(grammar, beginnings)
    for name, rule in grammar.items():
        for region in _undecided(rule, follows[name], beginnings):
            if sizes.of(region) > MAX_AMBIGUOUS:
                raise Unsupported(_TOO_AMBIGUOUS)


def _undecided(node: Node, follow: Ranges, beginnings: Beginnings) -> Iterator[Node]:
    """The regions within which one character does not decide.

    That is a choice alone, as its alternatives meet again behind it, and an island; but all of the grammar, where a text may be in
    one part or already in what follows it.
    """
    match node:
        case Concat(parts):
            for part in reversed(parts):
                yield from _undecided(part, follow, beginnings)
                follow = beginnings.after(part, follow)
        case Choice(options):
            if overlap(beginnings.of(option) for option in options):
                yield node
            if beginnings.can_be_empty(node) and characters.intersection(beginnings.of(node), follow):
                yield Rule(ROOT)
            yield from chain.from_iterable(_undecided(option, follow, beginnings) for option in options)
        case Repeat(inner, least, most):
            if least != most and characters.intersection(beginnings.of(inner), follow):
                yield Rule(ROOT)
            yield from _undecided(inner, _again(node, follow, beginnings), beginnings)
        case Island(inner):
            if any(True for _ in _undecided(inner, follow, beginnings)):
                yield inner
        case _:
            return


def _again(node: Repeat, follow: Ranges, beginnings: Beginnings) -> Ranges:
    """What can follow one turn of a repetition."""
    return follow if node.most == 1 else characters.union(beginnings.of(node.node), follow)


def overlap(sets: Iterable[Ranges]) -> bool:
    """Whether any two of them have a character in common."""
    seen = NOTHING
    for ranges in sets:
        if characters.intersection(seen, ranges):
            return True
        seen = characters.union(seen, ranges)
    return False


def _follows(grammar: Grammar, beginnings: Beginnings) -> dict[str, Ranges]:
    """The characters that can follow each rule."""
    follows: dict[str, Ranges] = dict.fromkeys(grammar, NOTHING)
    before: dict[str, Ranges] = {}
    while before != follows:
        before = dict(follows)
        for name, node in grammar.items():
            for rule, follow in _followed(node, follows[name], beginnings):
                follows[rule] = characters.union(follows[rule], follow)
    return follows


def _followed(node: Node, follow: Ranges, beginnings: Beginnings) -> Iterator[tuple[str, Ranges]]:
    """The rules named inside, each with what can follow it there."""
    match node:
        case Rule(name):
            yield name, follow
        case Concat(parts):
            for part in reversed(parts):
                yield from _followed(part, follow, beginnings)
                follow = beginnings.after(part, follow)
        case Repeat(inner):
            yield from _followed(inner, _again(node, follow, beginnings), beginnings)
        case _:
            for child in children(node):
                yield from _followed(child, follow, beginnings)


class _Sizes:
    """How many places there are in a part, rules entered; beyond every limit where rules recur."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._known: dict[str, int] = {}
        self._open: set[str] = set()

    def of(self, node: Node) -> int:
        for name in rules_in(node):
            self._enter(name)
        return _places(node, self._known)

    def _enter(self, name: str) -> None:
        if name in self._open:
            self._known[name] = MAX_COMPILED
        if name not in self._known:
            self._open.add(name)
            self._known[name] = min(MAX_COMPILED, self.of(self._grammar[name]))
            self._open.discard(name)


def _places(node: Node, known: dict[str, int]) -> int:
    match node:
        case Concat(parts):
            return sum(_places(part, known) for part in parts)
        case Choice(options):
            return sum(_places(option, known) for option in options)
        case Repeat(inner, least, most):
            return _places(inner, known) * max(1, least + 1 if most is None else most)
        case Island(inner):
            return _places(inner, known)
        case Rule(name):
            return known.get(name, 1)
        case _:
            return 1
