"""The tree as GBNF, llama.cpp's notation."""

from worker.engines.llama_cpp.grammar.characters import Ranges
from worker.engines.llama_cpp.grammar.tree import ROOT, Chars, Choice, Concat, Grammar, Island, Node, Repeat, Rule


def written(grammar: Grammar) -> str:
    """The grammar's text. Names are replaced, and all but letters and digits is escaped: nothing of a client's spelling is left."""
    names = {name: name if name == ROOT else f"r{number}" for number, name in enumerate(grammar)}
    return "\n".join(f"{names[name]} ::= {_alternatives(node, names)}" for name, node in grammar.items()) + "\n"


def _alternatives(node: Node, names: dict[str, str]) -> str:
    options = node.options if isinstance(node, Choice) else (node,)
    return " | ".join(_sequence(option, names) for option in options)


def _sequence(node: Node, names: dict[str, str]) -> str:
    parts = node.parts if isinstance(node, Concat) else (node,)
    words: list[str] = []
    literal = ""
    for part in parts:
        if isinstance(part, Chars) and _is_single(part.ranges):
            literal += _character(part.ranges[0][0])
            continue
        if literal:
            words.append(f'"{literal}"')
            literal = ""
        words.append(_item(part, names))
    if literal or not words:
        words.append(f'"{literal}"')
    return " ".join(words)


def _item(node: Node, names: dict[str, str]) -> str:
    match node:
        case Chars(ranges):
            return _class(ranges)
        case Rule(name):
            return names[name]
        case Repeat(inner, least, most):
            item = _item(inner, names)
            return (f"({item})" if isinstance(inner, Repeat) else item) + _times(least, most)
        case Island(inner):
            return _item(inner, names)
        case _:
            return f"({_alternatives(node, names)})"


def _times(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    if (least, most) == (0, 1):
        return "?"
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"


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
