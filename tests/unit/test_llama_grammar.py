"""The CPU engine's constraints, without its model: what a grammar allows, and which ones llama.cpp is never given."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from worker.engines.base import Constraint
from worker.engines.llama_cpp.grammar import characters, number_range, regex
from worker.engines.llama_cpp.grammar.compiling import MAX_TEXT, compiled, read, sound
from worker.engines.llama_cpp.grammar.schema_text import extent
from worker.engines.llama_cpp.grammar.tree import (
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
)

SPOKEN = characters.minus(characters.EVERYTHING, characters.of("\0\x04"))
"""What a model can say that has no token for two control characters."""


class Matcher:
    """Says whether a grammar allows a text: every place that each part can end at, tried one by one."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._text = ""

    def allows(self, text: str) -> bool:
        """Whether it is one of the grammar's texts."""
        self._text = text
        return len(text) in self._ends(self._grammar[ROOT], 0)

    def _ends(self, node: Node, start: int) -> set[int]:
        match node:
            case Chars(ranges):
                code = ord(self._text[start]) if start < len(self._text) else -1
                return {start + 1} if any(low <= code <= high for low, high in ranges) else set()
            case Concat(parts):
                ends = {start}
                for part in parts:
                    ends = {end for begin in ends for end in self._ends(part, begin)}
                return ends
            case Choice(options):
                return {end for option in options for end in self._ends(option, start)}
            case Repeat():
                return self._repeated(node, start)
            case Island(inner):
                return self._ends(inner, start)
            case Rule(name):
                return self._ends(self._grammar[name], start)

    def _repeated(self, node: Repeat, start: int) -> set[int]:
        ends: set[int] = set()
        open_ends, times = {start}, 0
        while open_ends:
            if times >= node.least:
                ends |= open_ends
            if times == node.most or times > len(self._text):
                break
            open_ends = {end for begin in open_ends for end in self._ends(node.node, begin)}
            times += 1
        return ends


def grammar_of(kind: Any, text: str = "") -> Matcher:
    """A constraint, as it would be given to llama.cpp."""
    return Matcher(sound(read(Constraint(kind=kind, text=text)), SPOKEN))


def schema(value: Any) -> Matcher:
    """A JSON Schema."""
    return grammar_of("json_schema", json.dumps(value))


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "rose"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name"],
    "additionalProperties": False,
}
LIST = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["v"],
        }
    },
    "$ref": "#/$defs/node",
}
SHAPES = {
    "oneOf": [
        {"type": "object", "properties": {"kind": {"const": "dot"}}, "required": ["kind"]},
        {
            "type": "object",
            "properties": {"kind": {"const": "disc"}, "r": {"type": "number", "minimum": 0}},
            "required": ["kind", "r"],
        },
    ]
}
TUPLE = {
    "type": "array",
    "prefixItems": [{"type": "integer"}, {"type": "boolean"}],
    "items": {"type": "null"},
    "maxItems": 3,
}

ALLOWED = [
    (PERSON, '{"name":"Ada"}'),
    (PERSON, '{"name":"Ada","tags":["rose"]}'),
    (PERSON, '{\n  "name": "Ad\\n\\u001f",\n  "age": 150,\n  "tags": ["red", "rose"]\n}'),
    (LIST, '{"v":1,"next":{"v":-2,"next":null}}'),
    (SHAPES, '{"kind":"disc","r":0.5}'),
    (SHAPES, '{"kind":"dot"}'),
    (TUPLE, "[1, true]"),
    (TUPLE, "[1,true,null]"),
    ({}, '[{"a":[1.5e-3,null]},"x"]'),
    (True, "false"),
    ({"type": ["integer", "null"]}, "null"),
    ({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}, '{"a":1,"b":2}'),
    ({"type": "object", "required": ["x"]}, '{"x":[]}'),
    ({"type": "string", "pattern": "b+"}, '"abbc"'),
    ({"type": "string", "pattern": '^"\\\\\n.?$'}, '"\\"\\\\\\né"'),
    ({"const": {"a": ["é", 1, None]}}, '{"a":["é",1,null]}'),
    ({"allOf": [{"properties": {"a": {"type": "null"}}}, {"properties": {"b": {}}, "required": ["b"]}]}, '{"b":1}'),
    ({"$ref": "#/$defs/x", "description": "d", "$defs": {"x": {"enum": [1, "1"]}}}, '"1"'),
    ({"minLength": 2, "format": "date", "type": "string"}, '"2026-02-28"'),
    ({"items": [{"type": "null"}], "additionalItems": False}, "[null]"),
]
REFUSED = [
    (PERSON, "{}"),
    (PERSON, '{"name":""}'),
    (PERSON, '{"name":"Adaada"}'),
    (PERSON, '{"name":"Ada","age":151}'),
    (PERSON, '{"name":"Ada","tags":[]}'),
    (PERSON, '{"name":"Ada","other":1}'),
    (PERSON, '{"age":1,"name":"Ada"}'),
    (PERSON, '{"name":"Ada",}'),
    (LIST, '{"next":null}'),
    (SHAPES, '{"kind":"disc"}'),
    (SHAPES, '{"kind":"dot","r":1}'),
    (TUPLE, "[1]"),
    (TUPLE, "[1,true,null,null]"),
    ({}, "01"),
    ({}, '"\n"'),
    ({}, "1 "),
    ({"type": "string", "pattern": "^b+$"}, '"abb"'),
    ({"enum": ["a", 1], "type": "string"}, "1"),
    ({"type": "string", "format": "date"}, '"2026-02-30"'),
]


@pytest.mark.parametrize(("value", "text"), ALLOWED)
def test_a_value_that_fits_a_schema_is_allowed(value: Any, text: str) -> None:
    """The text is one that the grammar of the schema allows, and jsonschema agrees that it fits."""
    draft = Draft7Validator if "additionalItems" in str(value) else Draft202012Validator
    draft(value).validate(json.loads(text))

    assert schema(value).allows(text)


@pytest.mark.parametrize(("value", "text"), REFUSED)
def test_a_text_that_does_not_fit_a_schema_is_not_allowed(value: Any, text: str) -> None:
    """What does not fit the schema, or is out of order, or not JSON, is none of the grammar's texts."""
    assert not schema(value).allows(text)


@pytest.mark.parametrize(
    "value",
    [
        {"not": {"type": "string"}},
        {"if": {}, "then": {}},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "contains": {}},
        {"type": "object", "patternProperties": {"a": {}}},
        {"type": "object", "propertyNames": {"minLength": 2}},
        {"type": "object", "minProperties": 2},
        {"type": "number", "minimum": 0.5},
        {"type": "number", "multipleOf": 2},
        {"type": "integer", "multipleOf": 3},
        {"type": "string", "format": "binary"},
        {"type": "string", "pattern": "^a*$", "maxLength": 3},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "string", "minLength": -1},
        {"type": "string", "minLength": "x"},
        {"type": "string", "maxLength": 10**6},
        {"type": "string", "pattern": "(a"},
        {"type": "string", "pattern": "(?=a)"},
        {"type": "string", "pattern": "\\p{L}"},
        {"type": "string", "pattern": "a{5,2}"},
        {"type": "array", "minItems": 3, "maxItems": 2},
        {"type": "array", "prefixItems": [True], "items": False, "minItems": 2},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "integer", "minimum": 10**40},
        {"type": "text"},
        {"enum": []},
        {"enum": ["a"], "type": "integer"},
        {"const": 1, "minimum": 0},
        {"oneOf": [{"type": "string"}, {"maxLength": 3}]},
        {"allOf": [{"maxLength": 3}, {"maxLength": 4}]},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"$ref": "#"},
        {"$ref": "#/$defs/none"},
        {"$ref": "https://example.com/schema"},
        {"$ref": ["#"]},
        {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"properties": {"a": False}, "required": ["a"]},
        {"properties": {"a": [1]}},
        {"properties": []},
        {"required": "a"},
        {"properties": {f"p{number}": {} for number in range(300)}},
        {"type": "string", "nullable": True},
        False,
        [1],
        "text",
    ],
    ids=json.dumps,
)
def test_a_schema_that_cannot_be_enforced_is_refused(value: Any) -> None:
    """Keywords, bounds and shapes that a grammar cannot hold a model to are an error with a sentence, not dropped."""
    with pytest.raises(Unsupported, match=r"\.$"):
        schema(value)


@pytest.mark.parametrize("text", ["", "{", '{"enum":[1e999]}', '{"const":NaN}', '{"const":"\\ud800"}', "[" * 100_000])
def test_a_schema_that_is_not_json_is_refused(text: str) -> None:
    """Broken JSON, numbers without end, half characters and nesting bombs are an error with a sentence."""
    with pytest.raises(Unsupported, match=r"\.$"):
        compiled(Constraint(kind="json_schema", text=text), SPOKEN)


@given(st.recursive(st.none() | st.booleans() | st.integers(-999, 999) | st.text(max_size=3), st.lists, max_leaves=4))
def test_any_value_is_allowed_as_python_writes_it(value: Any) -> None:
    """The grammar of any JSON value has what `json.dumps` writes, as long as the model can say it."""
    text = json.dumps(value, ensure_ascii=False)

    said = all(any(low <= ord(character) <= high for low, high in SPOKEN) for character in text)
    assert schema({}).allows(text) == said


@given(st.dictionaries(st.text("ab", max_size=2), st.integers(0, 9), max_size=3))
def test_json_object_is_objects_only(value: dict[str, int]) -> None:
    """json_object allows objects, and neither lists of them nor text behind them."""
    matcher, text = grammar_of("json_object"), json.dumps(value)

    assert (matcher.allows(text), matcher.allows(f"[{text}]"), matcher.allows(f"{text}\n")) == (True, False, False)


@given(st.integers(-120, 120), st.integers(0, 250), st.integers(-300, 300))
def test_integers_are_kept_between_their_bounds(low: int, span: int, value: int) -> None:
    """Exactly the integers from the lower to the upper bound are allowed."""
    matcher = Matcher({ROOT: number_range.whole_numbers(low, low + span)})

    assert matcher.allows(str(value)) == (low <= value <= low + span)


@given(st.integers(-12, 12), st.integers(0, 24), st.booleans(), st.booleans(), st.decimals(-30, 30, places=2))
def test_numbers_are_kept_between_their_bounds(low: int, span: int, above: bool, below: bool, value: Any) -> None:
    """No number outside of the bounds is allowed, nor a bound that is left out; those inside are."""
    high = low + span
    if span == 0 and (above or below):
        return
    matcher = Matcher({ROOT: number_range.numbers(low, high, above=above, below=below)})
    inside = (low < value if above else low <= value) and (value < high if below else value <= high)

    # Zero has no sign here.
    assert matcher.allows(str(value + 0)) == inside


@pytest.mark.parametrize(
    "pattern",
    [
        r"a|bc|",
        r"[a-c]+x?",
        r"(?:ab){2,3}c*",
        r"(a|ab)(c|bc)?",
        r"[^a]\d{0,2}",
        r"\w\W\s",
        r"a{2}|b{1,}?",
        r"(?<name>a)\.\x62",
        r".\u0063",
        r"^(a|b)*c$",
        r"(a*)*b",
        r"(?:a?){9}",
        r"(?:a?b?|c?){2}",
        r"[ab]*a[ab]{2}",
        r".*b.*c",
        r"(?:[ab]|[bc])+x",
    ],
)
def test_a_regular_expression_means_what_python_means(pattern: str) -> None:
    """Over all short texts of a few characters, exactly those match that `re.fullmatch` matches."""
    matcher = grammar_of("regex", pattern)
    python = re.compile(pattern.replace("?<", "?P<"), re.ASCII)
    texts = [""]
    for _ in range(4):
        texts += [text + character for text in texts if len(text) < 4 for character in "abcx.1 "]

    assert [text for text in set(texts) if matcher.allows(text) != bool(python.fullmatch(text))] == []


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1",
        r"(?!a)b",
        r"\bfoo",
        r"a**",
        r"a|^b",
        "(",
        ")",
        "[a",
        "[b-a]",
        "a{2,1}",
        r"\k<a>",
        "(?i)a",
        "[ab]*a[ab]{12}",
        "[]",
        "a$b",
    ],
)
def test_an_expression_that_is_not_regular_is_refused(pattern: str) -> None:
    """What remembers, looks around, leaves too much open or cannot be read is an error with a sentence."""
    with pytest.raises(Unsupported, match=r"\.$"):
        grammar_of("regex", pattern)


def test_lengths_of_an_expression_are_known() -> None:
    """The fewest and the most characters follow from the expression."""
    assert extent(regex.parse("a{2,3}(b|cde)?").node) == (2, 6)
    assert extent(regex.parse("a+").node) == (1, None)


GRAMMAR = """
# a comment
root  ::= "yes" ("!" | [^a-zA-Z.] {1,2})?  # another
       | number | 'it\\x27s' | "\\U0001F680"
number ::= [0-9]+ (
    "." [0-9]*
)?
"""


@pytest.mark.parametrize("text", ["yes", "yes!", "yes??", "1", "1.", "10.25", "it's", "🚀"])
def test_a_grammar_is_read_as_gbnf(text: str) -> None:
    """Comments, classes, groups over several lines, alternatives on lines of their own, both quotes, escapes and counts."""
    assert grammar_of("grammar", GRAMMAR).allows(text)


@pytest.mark.parametrize("text", ["", "ye", "yes???", "yesx", ".1", "its"])
def test_a_grammar_allows_nothing_else(text: str) -> None:
    """What the grammar does not say is not allowed."""
    assert not grammar_of("grammar", GRAMMAR).allows(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        'foo ::= "a"',
        "root ::= other",
        "root :: x",
        'root ::= "a',
        "root ::= [a",
        'root ::= ("a"',
        'root ::= "a" )',
        'root ::= "\\d"',
        'root ::= "\\uD800"',
        "root ::= [a-z]{5,2}",
        "root ::= [a-z]{}",
        "root ::= [a-z]{0,20000}",
        'root ::= ("a"?)* (root "b")?',
        'root ::= [ab] root "b" | [bc] root "c" | "d"',
        'root ::= root "a" | "b"',
        'root ::= x "a"\nx ::= "b"? root',
        "root ::= root",
        'root ::= "a" root',
        'root ::= "a" | "b" [^\\x00-\\U0010FFFF]',
        'root ::= "a" "\\x04"',
        'root ::= "a"\nroot ::= "b"',
        'root ::= "a" root ::= "b"',
        "root ::= " + "(" * 500_000 + '"a"' + ")" * 500_000,
        "root ::= " + "(" * 1000 + '"a"' + ")" * 1000,
        'root ::= "' + "a" * 60_000 + '"',
        "root ::= x{10000}\nx ::= [a-z]{0,10000}",
        "root ::= [a-z]{1,1000} [a-z]{1,1000}",
        'root ::= "(" root ")" | [a-z]+ [a-z]+ root | "x"',
    ],
    ids=lambda text: text[:40],
)
def test_a_grammar_that_could_hurt_is_refused(text: str) -> None:
    """What cannot be read, ended, or followed with few possibilities open is an error with a sentence."""
    with pytest.raises(Unsupported, match=r"\.$"):
        compiled(Constraint(kind="grammar", text=text), SPOKEN)


def test_a_constraint_is_bounded() -> None:
    """One that is too long is refused before it is read."""
    with pytest.raises(Unsupported, match=f"at most {MAX_TEXT}"):
        compiled(Constraint(kind="regex", text="a" * (MAX_TEXT + 1)), SPOKEN)


def test_common_beginnings_are_written_once() -> None:
    """Alternatives that begin alike are rearranged, so a recursion whose possibilities would double has one at a time."""
    doubling = 'root ::= "a" root "b" | "a" root "c" | "a"'

    assert compiled(Constraint(kind="grammar", text=doubling), SPOKEN) == 'root ::= "a" (root ("b" | "c") | "")\n'
    assert grammar_of("grammar", doubling).allows("aaabc")


def test_what_is_ambiguous_is_decided() -> None:
    """Where a character could be read in two ways, or nothing in several, an automaton says the same in one way."""
    text = 'root ::= space? ("a" space | "" | space)\nspace ::= " "*'

    assert compiled(Constraint(kind="grammar", text=text), SPOKEN) == (
        'root ::= r1\nr1 ::= "\\x20" r1 | "a" r2 | ""\nr2 ::= "\\x20" r2 | ""\n'
    )


def test_a_client_spells_nothing_of_what_is_written() -> None:
    """Names are replaced and characters escaped: quotes, brackets and line ends of a client stay inside their text."""
    text = 'root ::= my_rule\nmy_rule ::= "\\"\\n]" [\\]^é🚀-]'

    assert compiled(Constraint(kind="grammar", text=text), SPOKEN) == (
        'root ::= r1\nr1 ::= "\\x22\\x0A\\x5D" [\\x2D\\x5D-\\x5E\\xE9\\U0001F680]\n'
    )


def test_long_repetitions_are_written_in_chunks() -> None:
    """No number that llama.cpp gets is above a thousand, and what is repeated has a name."""
    written = compiled(Constraint(kind="regex", text="(?:ab){1500,3700}"), SPOKEN)

    assert max(map(int, re.findall(r"\d+", written.replace("x0", "")))) == 1000


@given(st.sets(st.integers(0, 0x10FFFF), max_size=6), st.sets(st.integers(0, 0x10FFFF), max_size=6))
def test_sets_of_characters_are_sets(one: set[int], other: set[int]) -> None:
    """Union, intersection, complement and difference are those of sets, surrogates apart."""
    left, right = (characters.merged((code, code) for code in codes) for codes in (one, other))

    def listed(ranges: characters.Ranges) -> set[int]:
        return {code for low, high in ranges for code in range(low, high + 1)}

    real = {code for code in one | other if not 0xD800 <= code <= 0xDFFF}
    assert listed(characters.union(left, right)) == real
    assert listed(characters.minus(left, right)) == (one - other) & real
    assert characters.complement(characters.complement(left)) == left


def test_what_can_be_said_follows_from_the_bytes() -> None:
    """A character can be said if each byte of its UTF-8 form is a token; NUL never can."""
    spoken = characters.spoken_with(set(range(256)) - {0x04, 0xF1})

    said = [chr(code) for code in (0, 4, 5, 0x7F, 0xE9, 0xD7FF, 0xFFFD, 0x1F680, 0x40000, 0x10FFFF)]
    kept = [character for character in said if any(low <= ord(character) <= high for low, high in spoken)]
    assert kept == ["\x05", "\x7f", "é", "\ud7ff", "�", "🚀", "\U0010ffff"]
