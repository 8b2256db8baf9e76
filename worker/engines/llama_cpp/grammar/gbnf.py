r"""Grammars as clients write them: GBNF, and what xgrammar's EBNF has in common with it.

    root ::= "yes" | "no" ("!" | [^a-z0-9.] {2,5})*   # a comment

Rules are `name ::= alternatives`; inside parentheses lines may break anywhere, elsewhere before a `|`. Escapes in texts and classes
are \n \r \t \\ \" \' \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH. `.` is any character.
"""

import re
from typing import Final

from worker.engines.llama_cpp.grammar import characters
from worker.engines.llama_cpp.grammar.tree import (
    ROOT,
    Chars,
    Grammar,
    Node,
    Repeat,
    Rule,
    Unsupported,
    choice,
    class_of,
    concat,
    repeat,
    text,
)

MAX_DEPTH: Final = 64

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_DEFINES: Final = re.compile(r"\s*::=")
_BLANK: Final = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANK_LINES: Final = re.compile(r"(?:\s|#[^\r\n]*)*")
_BRACES: Final = re.compile(r"\{\s*(\d{0,9})\s*(,?)\s*(\d{0,9})\s*\}")
_HEX: Final = {"x": 2, "u": 4, "U": 8}
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", **{character: character for character in "\\\"'[]-^"}}


def parse(source: str) -> Grammar:
    """The grammar. Raises Unsupported with what is wrong and in which line."""
    return _Parser(source).grammar()


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._depth = 0

    def grammar(self) -> Grammar:
        rules: Grammar = {}
        self._skip(lines=True)
        while self._at < len(self._source):
            name = self._take(_NAME, "the name of a rule")[0]
            self._take(_DEFINES, "'::='")
            self._skip(lines=True)
            if name in rules:
                raise self._wrong(f"the rule {name!r} is defined twice")
            rules[name] = self._alternatives(lines=False)
            self._end_of_rule()
        if ROOT not in rules:
            raise Unsupported("The grammar has no rule 'root'.")
        return rules

    def _end_of_rule(self) -> None:
        before = self._at
        self._skip(lines=True)
        if self._at < len(self._source) and "\n" not in self._source[before : self._at]:
            raise self._wrong("a rule ends where its line ends")

    def _alternatives(self, *, lines: bool) -> Node:
        options = [self._sequence(lines=lines)]
        while self._next() == "|":
            self._at += 1
            self._skip(lines=True)
            options.append(self._sequence(lines=lines))
        return choice(*options)

    def _sequence(self, *, lines: bool) -> Node:
        parts: list[Node] = []
        self._skip(lines=lines)
        while self._next() not in ("", "|", ")", "\n", "\r") and not (lines and self._at_definition()):
            parts.append(self._repeated(self._item()))
            self._skip(lines=lines)
        self._skip_to_bar()
        return concat(*parts)

    def _skip_to_bar(self) -> None:
        # The next alternative may stand on a line of its own.
        found = _BLANK_LINES.match(self._source, self._at)
        if found is not None and self._source[found.end() : found.end() + 1] == "|":
            self._at = found.end()

    def _at_definition(self) -> bool:
        name = _NAME.match(self._source, self._at)
        return name is not None and _DEFINES.match(self._source, name.end()) is not None

    def _item(self) -> Node:
        character = self._next()
        if character in ('"', "'"):
            return self._text(character)
        if character == "[":
            return self._class()
        if character == ".":
            self._at += 1
            return Chars(characters.EVERYTHING)
        if character == "(":
            return self._group()
        return Rule(self._take(_NAME, "a text, a class, a rule or a group")[0])

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unsupported(f"The grammar is nested more than {MAX_DEPTH} levels deep.")
        self._at += 1
        node = self._alternatives(lines=True)
        self._expect(")")
        self._depth -= 1
        return node

    def _repeated(self, node: Node) -> Node:
        self._skip(lines=False)
        while (character := self._next()) and character in "*+?{":
            if character == "{":
                node = self._counted(node)
            else:
                self._at += 1
                node = Repeat(node, *{"*": (0, None), "+": (1, None), "?": (0, 1)}[character])
            self._skip(lines=False)
        return node

    def _counted(self, node: Node) -> Node:
        found = self._take(_BRACES, "{m}, {m,} or {m,n}")
        if not found[1] and not found[3]:
            raise self._wrong("a repetition needs a number")
        least = int(found[1] or 0)
        most = int(found[3]) if found[3] else None if found[2] else least
        return repeat(node, least, most)

    def _text(self, quote: str) -> Node:
        self._at += 1
        read = ""
        while self._next() != quote:
            read += self._character()
        self._at += 1
        return text(read)

    def _class(self) -> Node:
        self._at += 1
        negated = self._next() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while self._next() != "]":
            low = high = ord(self._character())
            if self._next() == "-" and self._source[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = ord(self._character())
            ranges.append((low, high))
        self._at += 1
        return Chars(class_of(ranges, negated=negated))

    def _character(self) -> str:
        character = self._next()
        if character in ("", "\n", "\r"):
            raise self._wrong("a text or class is not closed")
        self._at += 1
        if character != "\\":
            return character
        kind = self._next()
        self._at += 1
        if kind in _HEX:
            return self._hexadecimal(_HEX[kind])
        if kind not in _ESCAPES:
            raise self._wrong(f"\\{kind} is no escape")
        return _ESCAPES[kind]

    def _hexadecimal(self, digits: int) -> str:
        found = self._take(re.compile(rf"[0-9A-Fa-f]{{{digits}}}"), f"{digits} hexadecimal digits")
        code = int(found[0], 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise self._wrong("there is no such character")
        return chr(code)

    def _next(self) -> str:
        return self._source[self._at : self._at + 1]

    def _skip(self, *, lines: bool) -> None:
        found = (_BLANK_LINES if lines else _BLANK).match(self._source, self._at)
        if found is not None:
            self._at = found.end()

    def _expect(self, character: str) -> None:
        if self._next() != character:
            raise self._wrong(f"{character!r} is missing")
        self._at += 1

    def _take(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        found = pattern.match(self._source, self._at)
        if found is None:
            raise self._wrong(f"{expected} is missing")
        self._at = found.end()
        return found

    def _wrong(self, what: str) -> Unsupported:
        line = self._source.count("\n", 0, self._at) + 1
        return Unsupported(f"The grammar cannot be read: in line {line}, {what}.")
