"""How vocabularies spell the bytes of a token in its name. llama.cpp's own function for it loses parts of characters."""

import re
from collections.abc import Callable
from typing import Final

SENTENCE_PIECE: Final = 1
BYTE_PAIR: Final = 2
"""llama.cpp's numbers for kinds of vocabulary."""

_BYTE_NAME: Final = re.compile(r"<0x([0-9A-F]{2})>")


def byte_pair_bytes(name: str) -> bytes:
    """GPT-2's spelling: one printable character for each byte. A name that is not spelled so stands for itself."""
    if any(character not in _SPELLED for character in name):
        return name.encode()
    return bytes(_SPELLED[character] for character in name)


def sentence_piece_bytes(name: str) -> bytes:
    """SentencePiece's spelling: U+2581 for a space, and `<0x0A>` for a byte that is not part of a known character."""
    byte = _BYTE_NAME.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace("\u2581", " ").encode()


SPELLINGS: Final[dict[int, Callable[[str], bytes]]] = {
    SENTENCE_PIECE: sentence_piece_bytes,
    BYTE_PAIR: byte_pair_bytes,
}


def _spelled() -> dict[str, int]:
    # Printable Latin-1 characters stand for themselves, the other bytes for the characters from U+0100 on, in order.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}


_SPELLED: Final = _spelled()
