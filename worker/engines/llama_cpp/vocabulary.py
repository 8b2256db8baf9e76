"""Tokens and their exact bytes."""

from collections.abc import Collection
from typing import Final

from worker.engines.base import EngineError
from worker.engines.llama_cpp.binding import Weights
from worker.engines.llama_cpp.markers import Markers
from worker.engines.llama_cpp.spelling import SPELLINGS
from worker.engines.llama_cpp.token_bound import TokenBound

_NORMAL: Final = 4
_CONTROL: Final = 8
_BYTE: Final = 32
_STRIPS_LEFT: Final = 128
"""llama.cpp's attributes of tokens. The names of normal tokens and bytes are spelled; those of all others are meant literally."""
_MOST_MARKERS: Final = 1000
"""How many markers llama.cpp is given at a time."""


class Vocabulary:
    """What the model reads and writes. Thread-safe: nothing changes after it is made."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._vocab = weights.vocab
        self.size = int(self._vocab.n_vocab)
        self.bytes = self._byte_table()
        """Each token's bytes; a control token's are those of its name."""
        self.ends = frozenset(token for token in range(self.size) if self._vocab.is_eog(token))
        """The model's own end tokens."""
        self.control = self.ends | {token for token in range(self.size) if self._vocab.is_control(token)}
        """Tokens that are not text, the end tokens among them."""
        self.bos = self._name(int(self._vocab.token_bos()))
        """The name of the token that begins a text, empty if there is none."""
        self.eos = self._name(int(self._vocab.token_eos()))
        """The name of the token that ends one."""
        self._markers = self._found_markers()
        self._bound = TokenBound(self.bytes, self.single_bytes(), self._markers)
        self._closes_texts = self._last("a", add_special=True) != self._last("a", add_special=False)
        """Whether `add_special` adds a token behind a text, too."""

    def tokenize(self, text: str, *, special: bool, add_special: bool) -> list[int]:
        """Token ids. Characters that the vocabulary has no bytes for are left out by llama.cpp; lone surrogates become `?`."""
        # The round trip costs less than tokenising, and what cannot be encoded would be refused.
        clean = text.encode(errors="replace").decode()
        if not special or (add_special and self._closes_texts):
            return self._ids(clean, add_special=add_special, special=special)
        first, *others = self._markers.pieces(clean, _MOST_MARKERS)
        ids = self._ids(first, add_special=add_special, special=True)
        for piece in others:
            ids += self._ids(piece, add_special=False, special=True)
        return ids

    def _ids(self, text: str, *, add_special: bool, special: bool) -> list[int]:
        ids: list[int] = self._vocab.tokenize(text, add_special, special)
        return ids

    def fewest_tokens(self, text: str, enough: int) -> int:
        """How many tokens a text has at least, with its markers read as tokens; see `TokenBound.fewest`."""
        return self._bound.fewest(text, enough)

    def text_of(self, token: int) -> bytes:
        """The bytes a token adds to the text: none for one that is not text."""
        return b"" if token in self.control else self.bytes[token]

    def holds(self, ids: Collection[int]) -> bool:
        """Whether all ids are tokens. llama.cpp aborts on one that is not."""
        return not ids or (min(ids) >= 0 and max(ids) < self.size)

    def single_bytes(self) -> set[int]:
        """The bytes that are tokens of their own."""
        return {data[0] for token, data in enumerate(self.bytes) if len(data) == 1 and token not in self.control}

    def _last(self, text: str, *, add_special: bool) -> list[int]:
        return self._ids(text, add_special=add_special, special=False)[-1:]

    def _name(self, token: int) -> str:
        return self.bytes[token].decode(errors="replace") if 0 <= token < self.size else ""

    def _found_markers(self) -> Markers:
        kinds = [int(self._vocab.get_attr(token)) for token in range(self.size)]
        named = {
            token: str(self._vocab.get_text(token)) for token, kind in enumerate(kinds) if not kind & (_NORMAL | _BYTE)
        }
        # Before one that swallows what stands left of it, a text cannot be cut.
        markers = [name for token, name in named.items() if kinds[token] & _CONTROL and not kinds[token] & _STRIPS_LEFT]
        return Markers(markers, named.values())

    def _byte_table(self) -> tuple[bytes, ...]:
        kind = self._vocab.vocab_type
        spelled = SPELLINGS.get(int(kind() if callable(kind) else kind))
        if spelled is None:
            raise EngineError("The engine llama_cpp does not know how this model's vocabulary spells bytes.")
        vocab = self._vocab
        names = [(token, str(vocab.get_text(token))) for token in range(self.size)]
        return tuple(
            spelled(name) if int(vocab.get_attr(token)) & (_NORMAL | _BYTE) else name.encode() for token, name in names
        )
