"""The tree as GBNF, llama.cpp's notation."""

from typing import Final

from worker.engines.llama_cpp.grammar.characters import Ranges
from worker.engines.llama_cpp.grammar.tree import ROOT, Chars, Choice, Concat, Grammar, Island, Node, Repeat, Rule

CHUNK: Final = 1000
"""The largest number that llama.cpp is given for a repetition. Its own limit is 2000, which counts what is inside, too."""


def written(grammar: Grammar) -> str:
    """The grammar's text. Names are replaced, and all but letters and digits is escaped: nothing of a client's spelling is left."""
    return _Writer(grammar).text()


class _Writer:
    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._names = {name: name if name == ROOT else f"r{number}" for number, name in enumerate(grammar)}
        self._repeated: dict[Node, str] = {}
        self._lines: list[str] = []

    def text(self) -> str:
        for name, node in self._grammar.items():
            self._lines.append(f"{self._names[name]} ::= {self._alternatives(node)}")
        return "\n".join(self._lines) + "\n"

    def _alternatives(self, node: Node) -> str:
        options = node.options if isinstance(node, Choice) else (node,)
        return " | ".join(self._sequence(option) for option in options)

    def _sequence(self, node: Node) -> str:
        words: list[str] = []
        literal = ""
        for part in node.parts if isinstance(node, Concat) else (node,):
            if isinstance(part, Chars) and _is_single(part.ranges):
                literal += _character(part.ranges[0][0])
                continue
            if literal:
                words.append(f'"{literal}"')
                literal = ""
            words.append(self._item(part))
        if literal or not words:
            words.append(f'"{literal}"')
        return " ".join(words)

    def _item(self, node: Node) -> str:
        match node:
            case Chars(ranges):
                return _class(ranges)
            case Rule(name):
                return self._names[name]
            case Repeat(inner, least, most):
                return self._repeat(self._named(inner), least, most)
            case Island(inner):
                return self._item(inner)
            case _:
                return f"({self._alternatives(node)})"

    def _named(self, node: Node) -> str:
        """What is repeated, as one symbol."""
        if isinstance(node, Chars | Rule):
            return self._item(node)
        if node not in self._repeated:
            body = self._alternatives(node)
            self._repeated[node] = f"x{len(self._repeated)}"
            self._lines.append(f"{self._repeated[node]} ::= {body}")
        return self._repeated[node]

    def _repeat(self, symbol: str, least: int, most: int | None) -> str:
        if most is None:
            return symbol + {0: "*", 1: "+"}[least] if least < 2 else f"({_exactly(symbol, least)} {symbol}*)"
        if (least, most) == (0, 1):
            return f"{symbol}?"
        parts = [_exactly(symbol, least)] if least else []
        parts += [_at_most(symbol, most - least)] if most > least else []
        return f"({' '.join(parts)})"


def _exactly(symbol: str, count: int) -> str:
    chunks = [CHUNK] * (count // CHUNK) + [count % CHUNK]
    return " ".join(f"{symbol}{{{chunk}}}" for chunk in chunks if chunk)


def _at_most(symbol: str, count: int) -> str:
    """Up to `count`. Beyond a chunk, two possibilities are open: that it ends in this chunk, or in a later one."""
    if count <= CHUNK:
        return f"{symbol}{{0,{count}}}"
    return f"({symbol}{{{CHUNK}}} {_at_most(symbol, count - CHUNK)} | {symbol}{{0,{CHUNK - 1}}})"


def _class(ranges: Ranges) -> str:
    if _is_single(ranges):
        return f'"{_character(ranges[0][0])}"'
    shown = (_character(low) if low == high else f"{_character(low)}-{_character(high)}" for low, high in ranges)
    return f"[{''.join(shown)}]"


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _character(code: int) -> str:
    character = chr(code)
    if character.isascii() and character.isalnum():
        return character
    if code <= 0xFF:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
