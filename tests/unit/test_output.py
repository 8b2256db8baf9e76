"""Engine output becomes deltas: UTF-8, stop strings, log probabilities, echo."""

import math
from typing import Any, Literal

import pytest
from hypothesis import given, strategies
from msgspec import UNSET

from schemas.events import Delta, TokenLogprob, merge
from worker.engines.base import Candidate, SequenceOutput, Token
from worker.output import OutputOptions, SequenceReader
from worker.stops import compile_stops

ROCKET = "🚀".encode()
NAMES = {1000: b"<|special|>"}
END = Token(id=1000, data=b"", logprob=-0.5)


def options(*stops: str, **more: Any) -> OutputOptions:
    """Options of a plain sequence. Any: whatever fields the test is about."""
    return OutputOptions(token_bytes=lambda id_: NAMES.get(id_, bytes([id_ % 256])), stops=compile_stops(stops), **more)


def token(data: bytes | str, logprob: float | None = -0.25, **more: Any) -> Token:
    """A token with this text."""
    raw = data.encode() if isinstance(data, str) else data
    return Token(id=raw[0] if raw else 1000, data=raw, logprob=logprob, **more)


def pieces(*data: bytes | str, reason: Literal["stop", "length"] = "length") -> list[SequenceOutput]:
    """One output per token, the last one ending the sequence."""
    outputs = [SequenceOutput(tokens=[token(piece)]) for piece in data]
    return [*outputs[:-1], SequenceOutput(tokens=outputs[-1].tokens, finish_reason=reason)]


def deltas(outputs: list[SequenceOutput], given_options: OutputOptions) -> list[Delta]:
    """What a reader makes of these outputs, until it is finished."""
    reader, made = SequenceReader(0, given_options), []
    for output in outputs:
        delta = reader.feed(output)
        made += [delta] if delta else []
        if reader.finished:
            break
    return made


def folded(outputs: list[SequenceOutput], given_options: OutputOptions) -> Delta:
    """All deltas as one."""
    first, *rest = deltas(outputs, given_options)
    for delta in rest:
        first = merge(first, delta)
    return first


def entries(delta: Delta) -> list[TokenLogprob]:
    assert isinstance(delta.logprobs, list)
    return delta.logprobs


class TestText:
    def test_character_over_several_tokens(self) -> None:
        """A character that comes byte by byte is delivered once, when it is whole."""
        made = deltas(pieces(*[bytes([byte]) for byte in ROCKET]), options())

        assert [delta.text for delta in made] == ["🚀"]
        assert made[0].tokens == 4

    def test_character_left_unfinished(self) -> None:
        """Bytes that the model itself never made a character are one replacement character at the end."""
        assert folded(pieces("a", ROCKET[:2], reason="stop"), options()).text == "a�"

    def test_character_cut_by_the_limit(self) -> None:
        """A character that the limit cut off is left out: the text ends before it."""
        assert folded(pieces("a", ROCKET[:2]), options()).text == "a"

    def test_invalid_byte(self) -> None:
        """A byte that cannot be text is replaced as soon as that is certain, and the text after it is untouched."""
        assert [delta.text for delta in deltas(pieces(b"\x80", "東"), options())] == ["�", "東"]

    def test_nothing_new(self) -> None:
        """An output without a whole character tells nothing, and its tokens are counted with the next delta."""
        reader = SequenceReader(0, options())

        assert reader.feed(SequenceOutput(tokens=[token(ROCKET[:3])])) is None
        after = reader.feed(SequenceOutput(tokens=[token(ROCKET[3:])]))
        assert after is not None
        assert after.tokens == 2

    def test_finish(self) -> None:
        """The last delta has the engine's finish reason; the end token counts and is no text."""
        delta = folded([SequenceOutput(tokens=[token("a"), END], finish_reason="stop")], options())

        assert (delta.text, delta.finish_reason, delta.stop_reason, delta.tokens) == ("a", "stop", UNSET, 2)

    def test_stop_token(self) -> None:
        """A stop token id is the stop reason."""
        delta = folded([SequenceOutput(tokens=[END], finish_reason="stop", stop_token=1000)], options())

        assert delta.stop_reason == 1000

    @pytest.mark.parametrize(("include", "text"), [(True, "a<|special|>"), (False, "a")])
    def test_stop_token_included(self, include: bool, text: str) -> None:
        """A stop token's text is delivered when what ends the sequence is to be left in."""
        ended = SequenceOutput(tokens=[token("a"), END], finish_reason="stop", stop_token=1000)

        assert folded([ended], options(include_stop=include)).text == text

    @pytest.mark.parametrize(("show", "text"), [(True, "<|special|>a"), (False, "a")])
    def test_special_token(self, show: bool, text: str) -> None:
        """A token that is not text is shown only on request."""
        outputs = [SequenceOutput(tokens=[END]), *pieces("a")]

        assert folded(outputs, options(show_special=show)).text == text


class TestStopStrings:
    def test_over_tokens_and_outputs(self) -> None:
        """A stop string is found wherever tokens cut it; the text before it is delivered, and it is the stop reason."""
        delta = folded(pieces("ab", "c", "de", "f"), options("bcd"))

        assert (delta.text, delta.finish_reason, delta.stop_reason) == ("a", "stop", "bcd")

    def test_included(self) -> None:
        """On request the stop string stays in the text, and nothing after it."""
        assert folded(pieces("ab", "cde"), options("bc", include_stop=True)).text == "abc"

    def test_held_back(self) -> None:
        """Text is held back only while it could become a stop string."""
        assert [delta.text for delta in deltas(pieces("xa", "a", "c"), options("aab"))] == ["x", "aac"]

    def test_overlapping_beginnings(self) -> None:
        """A beginning that fails may hide another one inside it."""
        assert folded(pieces("a", "a", "a", "b", "z"), options("aab")).text == "a"

    def test_end_while_holding(self) -> None:
        """What is held back at the engine's end was no stop string, and is delivered."""
        assert folded(pieces("a", "b"), options("bc")).text == "ab"

    def test_several(self) -> None:
        """The stop string that is complete first counts, the longest of those that are complete together."""
        assert folded(pieces("xabcd"), options("cd", "bc", "abc")).stop_reason == "abc"

    def test_tokens_after_it(self) -> None:
        """Tokens behind the stop string in one output were never asked for and are not counted."""
        output = SequenceOutput(tokens=[token("a"), token("S"), token("b")], finish_reason="length")

        assert folded([output], options("S")).tokens == 2

    def test_min_tokens(self) -> None:
        """Before min_tokens tokens a stop string is text like any other."""
        delta = folded(pieces("S", "S", "a", "S"), options("S", min_tokens=2))

        assert (delta.text, delta.tokens) == ("SSa", 4)

    def test_min_tokens_straddled(self) -> None:
        """A stop string that is complete only after min_tokens counts, wherever it began."""
        assert folded(pieces("a", "S", "T"), options("ST", min_tokens=2)).text == "a"

    @given(
        text=strategies.text(alphabet="ab🚀", max_size=20),
        cuts=strategies.lists(strategies.integers(1, 5), max_size=20),
        stops=strategies.lists(strategies.text(alphabet="ab🚀", min_size=1, max_size=4), max_size=3),
    )
    def test_any_chunking(self, text: str, cuts: list[int], stops: list[str]) -> None:
        """However a text is cut into tokens, the result is the text up to the stop string that is complete first."""
        expected = reference(text, stops)
        delta = folded(pieces(*cut(text.encode(), cuts)), options(*stops))

        assert (delta.text, delta.stop_reason) == expected

    @given(text=strategies.text(max_size=30), cuts=strategies.lists(strategies.integers(1, 5), max_size=30))
    def test_no_replacement_by_splitting(self, text: str, cuts: list[int]) -> None:
        """Text survives every way to cut its bytes."""
        assert folded(pieces(*cut(text.encode(), cuts)), options()).text == text


def reference(text: str, stops: list[str]) -> tuple[str, object]:
    """The obvious way: after each character, look whether the text ends with a stop string, the longest first."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, UNSET


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """The bytes in pieces of these sizes, the rest as one."""
    made, place = [], 0
    for size in sizes:
        made.append(data[place : place + size])
        place += size
    return [*[piece for piece in made if piece], data[place:]]


class TestLogprobs:
    def test_one_entry_per_token(self) -> None:
        """Every delivered token has an entry, parts of characters and the end token included."""
        outputs = [
            SequenceOutput(tokens=[token(bytes([byte]))]) for byte in ROCKET
        ] + [SequenceOutput(tokens=[END], finish_reason="stop")]  # fmt: skip
        delta = folded(outputs, options(logprobs=True))

        assert [entry.bytes for entry in entries(delta)] == [*[bytes([byte]) for byte in ROCKET], b""]
        assert delta.tokens == 5

    def test_entries_come_with_their_text(self) -> None:
        """An entry is told with the text of its token, not before."""
        made = deltas(pieces("xa", "a", "c"), options("aab", logprobs=True))

        assert [[entry.bytes for entry in delta.logprobs or []] for delta in made] == [[], [b"xa", b"a", b"c"]]

    def test_dropped_with_the_stop_string(self) -> None:
        """Tokens whose text a stop string removed have no entries, and count all the same."""
        delta = folded(pieces("a", "b", "c", "d"), options("cd", logprobs=True))

        assert [entry.bytes for entry in entries(delta)] == [b"a", b"b"]
        assert delta.tokens == 4

    def test_cut_by_the_stop_string(self) -> None:
        """A token of which a part is delivered has its entry."""
        assert [entry.bytes for entry in entries(folded(pieces("ab", "c"), options("bc", logprobs=True)))] == [b"ab"]

    def test_top_is_sorted(self) -> None:
        """Alternatives come most likely first, what is not a number last."""
        top = [Candidate(1, b"x", -2.0), Candidate(2, b"y", math.nan), Candidate(3, b"z", -1.0)]
        output = SequenceOutput(tokens=[token("a", top=top)], finish_reason="length")

        assert [other.bytes for other in entries(folded([output], options(logprobs=True)))[0].top] == [b"z", b"x", b"y"]

    def test_chosen_among_top(self) -> None:
        """In completions' shape the chosen token is always among its alternatives."""
        output = SequenceOutput(
            tokens=[token("a", logprob=-3.0, top=[Candidate(1, b"x", -2.0)])], finish_reason="length"
        )
        made = entries(folded([output], options(logprobs=True, chosen_in_top=True)))

        assert [other.bytes for other in made[0].top] == [b"x", b"a"]

    def test_mean(self) -> None:
        """Candidates are ranked by their mean log probability, also when nobody sees log probabilities."""
        reader = SequenceReader(0, options(ranked=True))
        delta = reader.feed(SequenceOutput(tokens=[token("a", -1.0), token("b", -3.0)], finish_reason="length"))

        assert reader.mean_logprob == -2.0
        assert delta is not None
        assert delta.logprobs is UNSET

    def test_mean_of_what_is_no_number(self) -> None:
        """A log probability that is not a number ranks as the floor."""
        reader = SequenceReader(0, options(ranked=True))
        reader.feed(SequenceOutput(tokens=[token("a", math.nan)]))

        assert reader.mean_logprob == -9999.0


class TestEcho:
    PROMPT = (Token(id=104, data=b"h"), Token(id=105, data=b"i", logprob=-1.0))

    def test_text(self) -> None:
        """The prompt's text stands in front of the answer, once."""
        assert folded(pieces("a", "b"), options(echo="hi")).text == "hiab"

    def test_logprobs(self) -> None:
        """With log probabilities the prompt's entries come first, the very first without a value."""
        output = SequenceOutput(tokens=[token("a", -2.0)], prompt=list(self.PROMPT), finish_reason="length")
        made = entries(folded([output], options(echo="hi", logprobs=True)))

        assert [entry.logprob for entry in made] == [None, -1.0, -2.0]

    def test_prompt_only(self) -> None:
        """Asked for no tokens, the prompt is the whole answer, and the token made on the way is not counted."""
        output = SequenceOutput(tokens=[token("a")], prompt=list(self.PROMPT))
        delta = folded([output], options(echo="hi", logprobs=True, prompt_only=True))

        assert (delta.text, delta.tokens, delta.finish_reason, len(entries(delta))) == ("hi", 0, "length", 2)

    def test_stop_string_in_the_prompt(self) -> None:
        """A stop string in the echoed prompt does not end anything."""
        assert folded(pieces("a"), options("hi", echo="hi")).text == "hia"
