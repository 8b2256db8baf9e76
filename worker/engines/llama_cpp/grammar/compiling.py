"""A constraint of the engine contract, compiled: read, checked, rearranged, written."""

from typing import Final

from worker.engines.base import Constraint
from worker.engines.llama_cpp.grammar import gbnf, json_schema, json_values, regex
from worker.engines.llama_cpp.grammar.characters import Ranges
from worker.engines.llama_cpp.grammar.deciding import decided
from worker.engines.llama_cpp.grammar.factoring import Factoring
from worker.engines.llama_cpp.grammar.soundness import (
    Beginnings,
    check_completable,
    check_loops,
    check_size,
    reachable,
    speakable,
)
from worker.engines.llama_cpp.grammar.tree import ROOT, Grammar, Unsupported
from worker.engines.llama_cpp.grammar.writing import written

MAX_TEXT: Final = 100_000
"""Characters a constraint may have."""
MAX_WRITTEN: Final = 400_000
"""And its grammar."""


def compiled(constraint: Constraint, spoken: Ranges) -> str:
    """llama.cpp's grammar for a constraint; `spoken` are the characters that the model has bytes for. Raises Unsupported."""
    if len(constraint.text) > MAX_TEXT:
        raise Unsupported(f"A constraint may have at most {MAX_TEXT} characters.")
    try:
        made = written(sound(read(constraint), spoken))
    except RecursionError as error:
        raise Unsupported("The constraint is nested too deeply.") from error
    if len(made) > MAX_WRITTEN:
        raise Unsupported("The constraint is too large.")
    return made


def read(constraint: Constraint) -> Grammar:
    """What a constraint says, as a grammar that may still be anything."""
    match constraint.kind:
        case "json_object":
            return {ROOT: json_values.any_object(), **json_values.free_rules()}
        case "json_schema":
            return json_schema.parse(constraint.text)
        case "regex":
            # The whole text must match, anchored or not.
            return {ROOT: regex.parse(constraint.text).node}
        case "grammar":
            return gbnf.parse(constraint.text)


def sound(grammar: Grammar, spoken: Ranges) -> Grammar:
    """The same grammar, such that llama.cpp can be trusted with it. Raises Unsupported."""
    grammar = {name: speakable(node, spoken) for name, node in reachable(grammar).items()}
    check_completable(grammar)
    beginnings = Beginnings(grammar)
    check_loops(grammar, beginnings)
    grammar = reachable(Factoring(grammar, beginnings).grammar())
    check_size(grammar)
    grammar = decided(grammar)
    check_size(grammar)
    return grammar
