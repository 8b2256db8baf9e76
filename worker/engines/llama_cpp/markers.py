"""Names such as `<|im_end|>` that are one token wherever they stand in a text.

llama.cpp looks for them in a way that takes the square of their number: 50,000 take twelve seconds. So texts that are full of them
are counted, and cut, here.
"""

import re
from collections.abc import Collection, Iterable, Iterator


class Markers:
    """`names` are read as one token wherever they stand, unless a part of them may belong to another of `named`: to all tokens that
    are found by their names. Those that may are none of ours.
    """

    def __init__(self, names: Collection[str], named: Collection[str]) -> None:
        apart = _apart(names, named)
        self._pattern = re.compile("|".join(map(re.escape, apart))) if apart else None

    def taken_out(self, text: str) -> tuple[str, int]:
        """The text without them, and how many they were."""
        return (text, 0) if self._pattern is None else self._pattern.subn("", text)

    def pieces(self, text: str, most: int) -> Iterator[str]:
        """The text in pieces of at most so many of them; each piece but the first begins with one."""
        begin = 0
        if self._pattern is not None:
            for number, found in enumerate(self._pattern.finditer(text)):
                if number and number % most == 0:
                    yield text[begin : found.start()]
                    begin = found.start()
        yield text[begin:]


def _apart(markers: Collection[str], named: Collection[str]) -> list[str]:
    """The markers that share no character with another name, or with themselves, in whatever text."""
    names = set(named)
    parts = {part for name in names for part in _parts(name)}
    heads = {name[:end] for name in names for end in range(1, len(name))}
    tails = {name[start:] for name in names for start in range(1, len(name))}
    return sorted(
        marker
        for marker in set(markers)
        if marker
        and marker not in parts
        and names.isdisjoint(_parts(marker))
        and heads.isdisjoint(marker[start:] for start in range(1, len(marker)))
        and tails.isdisjoint(marker[:end] for end in range(1, len(marker)))
    )


def _parts(name: str) -> Iterable[str]:
    """Every piece of a name but the whole."""
    for start in range(len(name)):
        for end in range(start + 1, len(name) + 1):
            if end - start < len(name):
                yield name[start:end]
