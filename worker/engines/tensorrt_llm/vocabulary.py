"""The model's tokens and their exact bytes, read from its Hugging Face tokenizer.

    ByteLevel                  each character of a piece stands for one byte (GPT-2's alphabet)
    Metaspace, ByteFallback    pieces are text with ▁ for a space, and <0x0A> for a byte that no piece has

Which of the two it is stands in the tokenizer's own description of its decoder. A tokenizer that says neither, or whose tokens do
not spell a text they were made from, is refused at the start: its answers could not be exact.
"""

import json
import re
from collections.abc import Iterator
from threading import Lock
from typing import Any, Final

from worker.engines.base import EngineError

PROBE: Final = "Hello, naïve café: 東京 привет 🚀 {'a': 1}\n"
_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE: Final = "▁"


class Vocabulary:
    """The tokenizer of a loaded model. `tokenize` is thread-safe: it has a lock, for a fast tokenizer's settings are its own state.

    `llm_tokenizer` is the library's wrapper or the tokenizer itself; `size` (None: the tokenizer's) is how many logits the model
    has. Any: neither has types here.
    """

    def __init__(self, llm_tokenizer: Any, size: int | None) -> None:
        tokenizer = getattr(llm_tokenizer, "tokenizer", llm_tokenizer)
        if tokenizer is None:
            raise EngineError("TensorRT-LLM has loaded no tokenizer (skip_tokenizer_init); packrelay needs it.")
        self._tokenizer = tokenizer
        self._lock = Lock()
        self._bytes = _token_bytes(tokenizer)
        self._special = frozenset(tokenizer.all_special_ids)
        self.size = max(size or 0, len(self._bytes))
        self.end: int | None = tokenizer.eos_token_id
        self.bos, self.eos = tokenizer.bos_token or "", tokenizer.eos_token or ""
        self._prove()

    @property
    def chat_template(self) -> str:
        """The template's Jinja source; of several the default one, empty without any."""
        template = self._tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        return template or ""

    def tokenize(self, text: str, *, special: bool, add_special: bool) -> list[int]:
        """Token ids of a text."""
        with self._lock:
            found = self._tokenizer(text, add_special_tokens=add_special, split_special_tokens=not special)
        return list(found["input_ids"])

    def spelled(self, token: int) -> bytes:
        """The bytes of a token, a special one's name included; none for an id beyond the tokenizer's."""
        return self._bytes[token] if 0 <= token < len(self._bytes) else b""

    def data(self, token: int) -> bytes:
        """The bytes a token has in the text: a special one has none."""
        return b"" if token in self._special else self.spelled(token)

    def holds(self, tokens: list[int]) -> bool:
        """Whether all ids are tokens of the model."""
        return not tokens or (min(tokens) >= 0 and max(tokens) < self.size)

    def _prove(self) -> None:
        spelled = b"".join(map(self.spelled, self.tokenize(PROBE, special=False, add_special=False))).decode(
            "utf-8", "replace"
        )
        # SentencePiece puts a space in front of a text.
        if spelled not in (PROBE, f" {PROBE}"):
            raise EngineError(
                f"The tokenizer of this model ({type(self._tokenizer).__name__}) cannot be read exactly: its tokens do not spell "
                "the text they were made from."
            )


def _token_bytes(tokenizer: Any) -> list[bytes]:
    """The bytes of every token. Any: see Vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        name = type(tokenizer).__name__
        message = f"The tokenizer of this model ({name}) is not a fast one; only those say which bytes a token is."
        raise EngineError(message)
    kinds = set(_decoders(json.loads(backend.to_str()).get("decoder") or {}))
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    added = {token: str(entry) for token, entry in tokenizer.added_tokens_decoder.items()}
    if "ByteLevel" in kinds:
        return _spelled(pieces, added, _byte_level)
    if kinds & {"Metaspace", "ByteFallback"}:
        return _spelled(pieces, added, _sentence_piece)
    raise EngineError(
        f"The tokenizer of this model decodes by {', '.join(sorted(kinds)) or 'nothing'}, which is not known here."
    )


def _decoders(description: dict[str, Any]) -> Iterator[str]:
    """The kinds of decoder in a description, those of a sequence one by one."""
    kind = str(description.get("type"))
    if kind != "Sequence":
        yield kind
    for inner in description.get("decoders", []):
        yield from _decoders(inner)


def _spelled(pieces: list[str | None], added: dict[int, str], bytes_of: Any) -> list[bytes]:
    """Each piece by its scheme; what was added to the vocabulary is plain text. Any: a function of one piece."""
    return [added[token].encode() if token in added else bytes_of(piece or "") for token, piece in enumerate(pieces)]


def _alphabet() -> dict[str, int]:
    """The characters that stand for bytes: printable Latin-1 for itself, the others from U+0100 upwards in their order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + number): byte for number, byte in enumerate(others)}


_ALPHABET: Final = _alphabet()


def _byte_level(piece: str) -> bytes:
    if not all(character in _ALPHABET for character in piece):
        # A piece outside the alphabet is text as it stands (some tokenizers add tokens that way).
        return piece.encode()
    return bytes(_ALPHABET[character] for character in piece)


def _sentence_piece(piece: str) -> bytes:
    byte = _BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(_SPACE, " ").encode()
