r"""Regular expressions, as ECMA-262 means them, as far as they are regular: what remembers or looks around is refused.

. \d \w \s \D \W \S [a-z] [^a-z] \n \r \t \f \v \0 \xHH \uHHHH \u{H…}   characters
( ) (?: ) (?<name> ) | * + ? {m} {m,} {m,n}                            structure; `?` behind a repetition changes nothing here
^ $                                                                    at the very beginning and end only
"""

import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from worker.engines.llama_cpp.grammar import characters
from worker.engines.llama_cpp.grammar.characters import Ranges
from worker.engines.llama_cpp.grammar.tree import Chars, Node, Repeat, Unsupported, choice, class_of, concat, repeat

MAX_DEPTH: Final = 32
_DIGIT: Final = ((0x30, 0x39),)
_WORD: Final = characters.merged([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
_SPACE: Final = characters.union(
    ((0x09, 0x0D),), characters.of(" \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"), ((0x2000, 0x200A),)
)
_LINE_END: Final = characters.of("\n\r\u2028\u2029")
_SETS: Final = {
    "d": _DIGIT,
    "w": _WORD,
    "s": _SPACE,
    "D": characters.complement(_DIGIT),
    "W": characters.complement(_WORD),
    "S": characters.complement(_SPACE),
}
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_HEXADECIMAL: Final = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_BRACES: Final = re.compile(r"\{(\d{1,9})(,?)(\d{0,9})\}")
_GROUP: Final = re.compile(r"\((?:\?:|\?P?<[A-Za-z_]\w*>|(?!\?))")


class Pattern(Struct, frozen=True):
    """What an expression matches, and whether it is held to the beginning and to the end of the text."""

    node: Node
    from_start: bool
    to_end: bool


def parse(source: str, spelled: Callable[[Ranges], Node] = Chars) -> Pattern:
    """The expression. `spelled` makes a node of a set of characters, where they are written another way (as in JSON).

    Raises Unsupported.
    """
    return _Parser(source, spelled).pattern()


class _Parser:
    def __init__(self, source: str, spelled: Callable[[Ranges], Node]) -> None:
        self._source = source
        self._spelled = spelled
        self._at = 0
        self._depth = 0

    def pattern(self) -> Pattern:
        from_start = self._accept("^")
        node = self._alternatives()
        to_end = self._accept("$")
        if self._at < len(self._source):
            raise self._wrong()
        if (from_start or to_end) and self._has_top_level_bar():
            raise Unsupported("In a regular expression with '^' or '$', alternatives must stand in a group.")
        return Pattern(node, from_start, to_end)

    def _has_top_level_bar(self) -> bool:
        depth, at, in_class = 0, 0, False
        while at < len(self._source):
            character = self._source[at]
            at += 2 if character == "\\" else 1
            if in_class or character == "[":
                in_class = character != "]"
            elif character == "|" and depth == 0:
                return True
            else:
                depth += {"(": 1, ")": -1}.get(character, 0)
        return False

    def _alternatives(self) -> Node:
        options = [self._sequence()]
        while self._accept("|"):
            options.append(self._sequence())
        return choice(*options)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._next() not in ("", "|", ")", "$"):
            parts.append(self._repeated(self._atom()))
        return concat(*parts)

    def _atom(self) -> Node:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._spelled(self._class())
        if character in "*+?{}]^":
            raise self._wrong()
        self._at += 1
        if character == ".":
            return self._spelled(characters.complement(_LINE_END))
        return self._spelled(self._escape() if character == "\\" else characters.of(character))

    def _group(self) -> Node:
        found = _GROUP.match(self._source, self._at)
        if found is None:
            raise Unsupported("Regular expressions that look around, or have flags inside, are not supported.")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unsupported(f"The regular expression is nested more than {MAX_DEPTH} levels deep.")
        self._at = found.end()
        node = self._alternatives()
        if not self._accept(")"):
            raise self._wrong()
        self._depth -= 1
        return node

    def _repeated(self, node: Node) -> Node:
        character = self._next()
        if not character or character not in "*+?{":
            return node
        repeated = self._counted(node) if character == "{" else self._starred(node, character)
        # Lazy or not, the same texts match.
        self._accept("?")
        if self._next() and self._next() in "*+?{":
            raise self._wrong()
        return repeated

    def _starred(self, node: Node, character: str) -> Node:
        self._at += 1
        return Repeat(node, *{"*": (0, None), "+": (1, None), "?": (0, 1)}[character])

    def _counted(self, node: Node) -> Node:
        found = _BRACES.match(self._source, self._at)
        if found is None:
            raise self._wrong()
        self._at = found.end()
        least = int(found[1])
        return repeat(node, least, int(found[3]) if found[3] else None if found[2] else least)

    def _class(self) -> Ranges:
        self._at += 1
        negated = self._accept("^")
        ranges: list[tuple[int, int]] = []
        while not self._accept("]"):
            low = self._member()
            following = self._source[self._at + 1 : self._at + 2]
            if self._next() == "-" and following not in ("", "]"):
                self._at += 1
                high = self._member()
                if not (_is_single(low) and _is_single(high)):
                    raise self._wrong()
                low = ((low[0][0], high[0][0]),)
            ranges.extend(low)
        return class_of(ranges, negated=negated)

    def _member(self) -> Ranges:
        character = self._next()
        if not character:
            raise self._wrong()
        self._at += 1
        if character != "\\":
            return characters.of(character)
        return characters.of("\b") if self._accept("b") else self._escape()

    def _escape(self) -> Ranges:
        """What stands for characters behind a backslash. Everything that is not known to be one is refused."""
        character = self._next()
        found = _HEXADECIMAL.match(self._source, self._at)
        if found is not None:
            self._at = found.end()
            return characters.merged([(int(found[1] or found[2] or found[3], 16),) * 2])
        self._at += 1
        if character in _SETS:
            return _SETS[character]
        following = self._next()
        if character in _CONTROLS and not (character == "0" and following.isdigit()):
            return characters.of(_CONTROLS[character])
        if not character or character.isalnum():
            raise Unsupported(f"In a regular expression, '\\{character}' is not supported.")
        return characters.of(character)

    def _next(self) -> str:
        return self._source[self._at : self._at + 1]

    def _accept(self, character: str) -> bool:
        found = self._next() == character
        self._at += found
        return found

    def _wrong(self) -> Unsupported:
        return Unsupported(f"The regular expression cannot be read from character {self._at + 1} on.")


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]
