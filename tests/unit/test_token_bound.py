"""The least number of tokens of a text: never too many, whatever the text, and enough to refuse what is far too long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engines.llama_cpp.markers import Markers
from worker.engines.llama_cpp.token_bound import TokenBound

LETTERS = b"abcdefghijklmnopqrstuvwxyz"
SINGLE = [bytes([byte]) for byte in LETTERS + b" \n"]
TOKENS = [*SINGLE, b"abc", b" hide", b"jjjjj", b"\n        \n"]
"""Of a vocabulary that cannot say anything else."""
MARKERS = ["<|end|>", "<|user|>"]
MANY = 10**9


def bound(markers: list[str] = MARKERS, named: list[str] = MARKERS) -> TokenBound:
    """That vocabulary's."""
    tokens = [*TOKENS, *(name.encode() for name in named)]
    return TokenBound(tokens, LETTERS + b" \n<|>", Markers(markers, named))


PIECES = st.sampled_from([*TOKENS, *(name.encode() for name in MARKERS)])


@given(st.lists(PIECES, max_size=30))
def test_it_is_never_more_than_there_are(pieces: list[bytes]) -> None:
    """However a text is put together from so many tokens, it has at least no more than these."""
    assert bound().fewest(b"".join(pieces).decode(), MANY) <= len(pieces)


def test_a_token_stands_for_so_many_bytes_at_most() -> None:
    """A text is at least its length by the longest token: here a marker of eight bytes."""
    assert bound().fewest("j" * 80, MANY) == 10
    assert bound().fewest("j" * 81, MANY) == 11
    assert bound().fewest("", MANY) == 0


def test_markers_are_counted_one_by_one() -> None:
    """A thousand of them are a thousand tokens, and what is between them is not forgotten."""
    assert bound().fewest("<|end|>" * 1000, MANY) == 1000
    assert bound().fewest("<|end|>jjj<|user|>" * 10, MANY) == 20 + 4


@pytest.mark.parametrize("text", [" " * 1000, "\r\n\t" * 1000, "é" * 1000, "\x00" * 1000])
def test_what_may_be_left_out_is_not_counted(text: str) -> None:
    """Space, which markers swallow, and bytes that the vocabulary cannot say."""
    assert bound().fewest(text, MANY) == 0
    assert bound().fewest(f"a{text}b", MANY) == 1


def test_half_a_character_is_a_question_mark() -> None:
    """Surrogates are tokenised as such."""
    question = TokenBound([b"?"], b"?", Markers([], []))

    assert question.fewest("\ud800" * 7, MANY) == 7


@pytest.mark.parametrize(
    ("named", "counted"),
    [
        (["<a>", "<b>"], 3),
        (["<a>", "<a><b>"], 0),
        (["<a>", "b<a>c"], 0),
        (["<a>", "><"], 0),
        (["<a>", "><b"], 0),
        (["<a>", "b<"], 0),
        (["<a>", "a"], 0),
    ],
    ids=[
        "apart",
        "beginning of another",
        "inside another",
        "between two",
        "before another",
        "after another",
        "holds one",
    ],
)
def test_only_markers_that_overlap_nothing_count(named: list[str], counted: int) -> None:
    """Where another name may take a part of a marker, it is no sure token."""
    long = "x" * 1000
    made = TokenBound([long.encode()], b"<>abcx", Markers(["<a>"], named))

    assert made.fewest("<a><a><a>", MANY) == max(counted, 1)


def test_a_marker_that_overlaps_itself_does_not_count() -> None:
    """Of three letters in a row, only one pair is read."""
    made = TokenBound([b"x" * 1000], b"ax", Markers(["aa"], ["aa"]))

    assert made.fewest("a" * 900, MANY) == 1


@given(st.lists(PIECES, max_size=30), st.integers(1, 5))
def test_a_text_is_cut_before_markers(pieces: list[bytes], most: int) -> None:
    """The pieces are the text, with at most so many markers each, and every one but the first begins with one."""
    text = b"".join(pieces).decode()
    markers = Markers(MARKERS, MARKERS)
    cut = list(markers.pieces(text, most))

    assert "".join(cut) == text
    assert all(markers.taken_out(piece)[1] == most for piece in cut[:-1])
    assert markers.taken_out(cut[-1])[1] <= most
    assert all(piece.startswith(tuple(MARKERS)) for piece in cut[1:])


def test_a_text_without_markers_is_one_piece() -> None:
    """There is nothing to cut it at."""
    assert list(Markers([], []).pieces("<|end|>" * 3, 1)) == ["<|end|>" * 3]


def test_counting_stops_at_enough() -> None:
    """A text that is too long by its length is not searched for markers."""
    text = "<|end|>" * 1000

    assert bound().fewest(text, 875) == 875
    assert bound().fewest(text, 876) == 1000
