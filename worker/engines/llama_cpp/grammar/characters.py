"""Sets of characters: sorted, disjoint ranges of code points, both ends included. Surrogates are never in them."""

from collections.abc import Iterable
from typing import Final

Ranges = tuple[tuple[int, int], ...]

NOTHING: Final[Ranges] = ()
EVERYTHING: Final[Ranges] = ((0, 0xD7FF), (0xE000, 0x10FFFF))


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Any ranges, as a set."""
    made: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if made and low <= made[-1][1] + 1:
            made[-1] = (made[-1][0], max(made[-1][1], high))
        else:
            made.append((low, high))
    return intersection(tuple(made), EVERYTHING)


def of(characters: str) -> Ranges:
    """The set of these characters."""
    return merged((ord(character), ord(character)) for character in characters)


def union(*sets: Ranges) -> Ranges:
    """What is in any of them."""
    return merged(part for ranges in sets for part in ranges)


def intersection(one: Ranges, other: Ranges) -> Ranges:
    """What is in both."""
    made = []
    left = right = 0
    while left < len(one) and right < len(other):
        low, high = max(one[left][0], other[right][0]), min(one[left][1], other[right][1])
        if low <= high:
            made.append((low, high))
        if one[left][1] < other[right][1]:
            left += 1
        else:
            right += 1
    return tuple(made)


def complement(ranges: Ranges) -> Ranges:
    """Every other character."""
    made, start = [], 0
    for low, high in ranges:
        if start < low:
            made.append((start, low - 1))
        start = high + 1
    if start <= 0x10FFFF:
        made.append((start, 0x10FFFF))
    return intersection(tuple(made), EVERYTHING)


def minus(one: Ranges, other: Ranges) -> Ranges:
    """What is in the one and not in the other."""
    return intersection(one, complement(other))


def spoken_with(single_bytes: Iterable[int]) -> Ranges:
    """The characters that can be written byte by byte, given the bytes that are tokens of their own.

    Without NUL, which llama.cpp's grammars allow in no token.
    """
    known = set(single_bytes)
    sets = [(byte, byte) for byte in range(1, 0x80) if byte in known]
    if known.issuperset(range(0x80, 0xC0)):
        sets += [_led_by(byte) for byte in range(0xC2, 0xF5) if byte in known]
    return merged(sets)


def _led_by(byte: int) -> tuple[int, int]:
    """The characters whose UTF-8 form begins with a byte."""
    if byte < 0xE0:
        low, size = (byte & 0x1F) << 6, 1 << 6
    elif byte < 0xF0:
        low, size = (byte & 0x0F) << 12, 1 << 12
    else:
        low, size = (byte & 0x07) << 18, 1 << 18
    shortest = {0xE0: 0x800, 0xF0: 0x10000}.get(byte, low)
    return shortest, min(low + size - 1, 0x10FFFF)
