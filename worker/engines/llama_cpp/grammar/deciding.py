"""One character decides, everywhere (the grammar is LL(1)): what llama.cpp does for a token then does not depend on how far it is.

llama.cpp follows all possibilities at once, and looks ahead through every token of the vocabulary: two ways to read a character are
2^60 ways to read a line of dashes.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from worker.engines.llama_cpp.grammar import automaton, characters
from worker.engines.llama_cpp.grammar.characters import NOTHING, Ranges
from worker.engines.llama_cpp.grammar.soundness import Beginnings, reachable
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
    choice,
    concat,
)


def decided(grammar: Grammar) -> Grammar:
    """The same grammar, decided. Raises Unsupported where that cannot be done."""
    made = reachable(_Deciding(grammar).grammar())
    if is_decided(made):
        return made
    try:
        whole = automaton.decided(grammar, grammar[ROOT], "state")
    except automaton.Undecidable as error:
        raise Unsupported(
            "The constraint leaves too many possibilities open: where it is long or recursive, the next character must decide "
            "between its alternatives, and whether a repetition goes on."
        ) from error
    return {ROOT: Rule("state0"), **whole}


def is_decided(grammar: Grammar) -> bool:
    """Whether one character decides between alternatives, and whether a repetition goes on; only one way is empty."""
    beginnings = Beginnings(grammar)
    follows = _follows(grammar, beginnings)
    return not any(chain.from_iterable(_undecided(node, follows[name], beginnings) for name, node in grammar.items()))


def overlap(sets: Iterable[Ranges]) -> bool:
    """Whether any two of them have a character in common."""
    seen = NOTHING
    for ranges in sets:
        if characters.intersection(seen, ranges):
            return True
        seen = characters.union(seen, ranges)
    return False


class _Deciding:
    """Replaces the smallest parts that are undecided in themselves: islands, and alternatives."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._beginnings = Beginnings(grammar)
        self._follows = _follows(grammar, self._beginnings)
        self._made: Grammar = {}
        self._known: dict[Node, Rule] = {}

    def grammar(self) -> Grammar:
        rules = {name: self._node(node, self._follows[name]) for name, node in self._grammar.items()}
        return {**rules, **self._made}

    def _node(self, node: Node, follow: Ranges) -> Node:
        match node:
            case Concat(parts):
                made: list[Node] = []
                for part in reversed(parts):
                    made.append(self._node(part, follow))
                    follow = self._beginnings.after(part, follow)
                return concat(*reversed(made))
            case Choice(options):
                if _is_undecided(node, self._beginnings):
                    return self._replaced(node)
                return choice(*(self._node(option, follow) for option in options))
            case Repeat(inner, least, most):
                return Repeat(self._node(inner, _again(node, follow, self._beginnings)), least, most)
            case Island(inner):
                undecided = any(True for _ in _undecided(inner, follow, self._beginnings))
                return self._replaced(inner) if undecided else inner
            case _:
                return node

    def _replaced(self, node: Node) -> Node:
        if node not in self._known:
            prefix = f"state{len(self._known)}-"
            try:
                self._made |= automaton.decided(self._grammar, node, prefix)
            except automaton.Undecidable:
                return node
            self._known[node] = Rule(f"{prefix}0")
        return self._known[node]


def _is_undecided(node: Choice, beginnings: Beginnings) -> bool:
    """Whether alternatives can begin alike, or are empty in two ways."""
    return overlap(map(beginnings.of, node.options)) or sum(map(beginnings.can_be_empty, node.options)) > 1


def _undecided(node: Node, follow: Ranges, beginnings: Beginnings) -> Iterator[Node]:
    """The alternatives and repetitions inside that one character does not decide."""
    match node:
        case Concat(parts):
            for part in reversed(parts):
                yield from _undecided(part, follow, beginnings)
                follow = beginnings.after(part, follow)
        case Choice(options):
            ends_early = beginnings.can_be_empty(node) and characters.intersection(beginnings.of(node), follow)
            if ends_early or _is_undecided(node, beginnings):
                yield node
            yield from chain.from_iterable(_undecided(option, follow, beginnings) for option in options)
        case Repeat(inner, least, most):
            goes_on = least != most and characters.intersection(beginnings.of(inner), follow)
            if goes_on or (most != 1 and beginnings.can_be_empty(inner)):
                yield node
            yield from _undecided(inner, _again(node, follow, beginnings), beginnings)
        case Island(inner):
            yield from _undecided(inner, follow, beginnings)
        case _:
            return


def _again(node: Repeat, follow: Ranges, beginnings: Beginnings) -> Ranges:
    """What can follow one turn of a repetition."""
    return follow if node.most == 1 else characters.union(beginnings.of(node.node), follow)


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
