"""How many tokens a text has at least, found without tokenising it: what is far too long is refused in milliseconds."""

from collections.abc import Collection, Iterable
from typing import Final

from worker.engines.llama_cpp.markers import Markers

_SPACE: Final = b" \t\n\v\f\r"
"""What llama.cpp may leave out: some markers swallow the space beside them."""


class TokenBound:
    """The least number of tokens, for texts whose markers are read as tokens.

    A token stands for so many bytes at most, and a marker is one token however short it is. Both hold for every text, because what
    llama.cpp may leave out is not counted: space, and bytes that are not `sayable`, that is, no tokens of their own. `tokens` are
    the bytes of all tokens.
    """

    def __init__(self, tokens: Iterable[bytes], sayable: Collection[int], markers: Markers) -> None:
        self._uncounted = bytes({*range(256)} - {*sayable}) + _SPACE
        self._longest = max(1, *(self._counted(token) for token in tokens))
        self._markers = markers

    def fewest(self, text: str, enough: int) -> int:
        """How many tokens there are at least; not counted any further once it is `enough`."""
        fewest = self._by_length(text)
        if fewest >= enough:
            # Looking for markers takes twenty times as long, and nobody else can compute meanwhile.
            return fewest
        others, markers = self._markers.taken_out(text)
        return markers + self._by_length(others)

    def _by_length(self, text: str) -> int:
        return -(-self._counted(text.encode(errors="replace")) // self._longest)

    def _counted(self, data: bytes) -> int:
        return len(data.translate(None, self._uncounted))
