"""Parts that are ambiguous but do not recur, made decided: as an automaton with one next state for each character."""

from itertools import pairwise
from typing import Final

from worker.engines.llama_cpp.grammar import characters
from worker.engines.llama_cpp.grammar.characters import Ranges
from worker.engines.llama_cpp.grammar.tree import (
    EMPTY,
    Chars,
    Choice,
    Concat,
    Grammar,
    Island,
    Node,
    Repeat,
    Rule,
    choice,
    concat,
)

MAX_PLACES: Final = 5_000
"""Characters a part may be made of, with repetitions and rules written out."""
MAX_STATES: Final = 2_000
MAX_WORK: Final = 300_000
"""Places that all states stand for, together."""


class Undecidable(ValueError):
    """The part recurs, or its automaton would be too large."""


class Places:
    """The part with everything written out: where a text may stand, and where it goes from there."""

    def __init__(self, grammar: Grammar, node: Node) -> None:
        self._grammar = grammar
        self._open: set[str] = set()
        self.jumps: list[list[int]] = []
        """From each place, those that nothing has to be said for to reach."""
        self.steps: list[tuple[Ranges, int] | None] = []
        """From each place, the one that a character leads to."""
        self.start = self._new()
        self.end = self._add(node, self.start)

    def _new(self) -> int:
        if len(self.jumps) > 4 * MAX_PLACES:
            raise Undecidable
        self.jumps.append([])
        self.steps.append(None)
        return len(self.jumps) - 1

    def _add(self, node: Node, start: int) -> int:
        """The node from a place on; returns where it ends."""
        match node:
            case Chars(ranges):
                begin, end = self._new(), self._new()
                self.jumps[start].append(begin)
                self.steps[begin] = (ranges, end)
                return end
            case Concat(parts):
                for part in parts:
                    start = self._add(part, start)
                return start
            case Choice(options):
                ends = [self._add(option, start) for option in options]
                return self._joined(ends)
            case Repeat():
                return self._repeated(node, start)
            case Island(inner):
                return self._add(inner, start)
            case Rule(name):
                return self._entered(name, start)

    def _entered(self, name: str, start: int) -> int:
        if name in self._open:
            raise Undecidable
        self._open.add(name)
        end = self._add(self._grammar[name], start)
        self._open.discard(name)
        return end

    def _repeated(self, node: Repeat, start: int) -> int:
        for _ in range(node.least):
            start = self._add(node.node, start)
        if node.most is None:
            turn = self._joined([start])
            self.jumps[self._add(node.node, turn)].append(turn)
            return self._joined([turn])
        ends = [start]
        for _ in range(node.most - node.least):
            start = self._add(node.node, self._joined([start]))
            ends.append(start)
        return self._joined(ends)

    def _joined(self, places: list[int]) -> int:
        joined = self._new()
        for place in places:
            self.jumps[place].append(joined)
        return joined

    def closure(self, places: set[int]) -> frozenset[int]:
        """The places, and all that can be reached without a character."""
        found = set(places)
        wanted = list(places)
        while wanted:
            for place in self.jumps[wanted.pop()]:
                if place not in found:
                    found.add(place)
                    wanted.append(place)
        return frozenset(place for place in found if self.steps[place] is not None or place == self.end)


def decided(grammar: Grammar, node: Node, prefix: str) -> Grammar:
    """Rules for what a node allows, the first of them for all of it. Raises Undecidable."""
    places = Places(grammar, node)
    first = places.closure({places.start})
    numbers = {first: 0}
    rules: Grammar = {}
    wanted = [first]
    work = 0
    while wanted:
        state = wanted.pop()
        work += len(state)
        if len(numbers) > MAX_STATES or work > MAX_WORK:
            raise Undecidable
        options: list[Node] = []
        for targets, ranges in _moves(places, state).items():
            if targets not in numbers:
                numbers[targets] = len(numbers)
                wanted.append(targets)
            last = targets == frozenset({places.end})
            following: Node = EMPTY if last else Rule(f"{prefix}{numbers[targets]}")
            options.append(concat(Chars(ranges), following))
        rules[f"{prefix}{numbers[state]}"] = choice(*options, *([EMPTY] if places.end in state else []))
    return dict(sorted(rules.items(), key=lambda rule: rule[0] != f"{prefix}0"))


def _moves(places: Places, state: frozenset[int]) -> dict[frozenset[int], Ranges]:
    """The states that follow, each with the characters that lead to it."""
    steps = [step for place in sorted(state) if (step := places.steps[place]) is not None]
    moves: dict[frozenset[int], list[tuple[int, int]]] = {}
    closures: dict[frozenset[int], frozenset[int]] = {}
    for low, high, targets in _atoms(steps):
        if targets not in closures:
            closures[targets] = places.closure(set(targets))
        moves.setdefault(closures[targets], []).append((low, high))
    return {targets: characters.merged(ranges) for targets, ranges in moves.items()}


def _atoms(steps: list[tuple[Ranges, int]]) -> list[tuple[int, int, frozenset[int]]]:
    """The characters, cut where any set begins or ends, each part with the places it leads to."""
    edges: dict[int, list[tuple[int, int]]] = {}
    for ranges, target in steps:
        for low, high in ranges:
            edges.setdefault(low, []).append((target, 1))
            edges.setdefault(high + 1, []).append((target, -1))
    atoms = []
    counts: dict[int, int] = {}
    cuts = sorted(edges)
    for low, beyond in pairwise(cuts):
        for target, change in edges[low]:
            counts[target] = counts.get(target, 0) + change
        targets = frozenset(target for target, count in counts.items() if count)
        if targets:
            atoms.append((low, beyond - 1, targets))
    return atoms
