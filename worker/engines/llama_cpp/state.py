"""Prefill state as bytes, from one worker to another.

    8 bytes   magic and version
    4 bytes   length of the header
    32 bytes  BLAKE2b of header and cache
    header    msgpack: whose state this is
    cache     the cells of the prompt as llama.cpp writes them, in the form that does not depend on slot and slots

llama.cpp reads sizes and counts from such bytes and believes them, so a state is taken apart completely before it is given one:
checksum, build, model, prompt, and then the structure, against what this worker writes itself.
"""

import struct
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from worker.engines.base import HandoffFailed
from worker.engines.llama_cpp.binding import BUILD

MAGIC: Final = b"PRKVST\x00\x01"
_LENGTH: Final = struct.Struct("<I")
_DIGEST_SIZE: Final = 32
_MAX_HEADER: Final = 4096
_SAMPLE_BYTES: Final = 1 << 20

_SEQUENCE: Final = struct.Struct("<III")  # llama.cpp's magic, slot, number of streams
_COUNT: Final = struct.Struct("<I")
_CELL: Final = struct.Struct("<iII")  # position, number of sequences, sequence
_CELLS_END: Final = struct.Struct("<II")  # whether values are transposed, number of layers
_LAYER: Final = struct.Struct("<iQ")  # kind of number, bytes per token


class Header(Struct, frozen=True, kw_only=True):
    """Whose state it is. `seed` is what the context leg drew with, so that the generation leg draws the same."""

    build: str
    model: str
    tokens: int
    prompt: bytes
    seed: int


class StateLayout(Struct, frozen=True):
    """How this worker's llama.cpp writes a slot: its magic, and the layers' (kind of number, bytes per token) in their order."""

    magic: int
    layers: int
    parts: tuple[tuple[int, int], ...]


class Damaged(ValueError):
    """Bytes are not a state."""


_header = msgspec.msgpack.Decoder(Header)


def fingerprint(path: Path) -> str:
    """What tells models apart: the file's size, its first and last MiB, and sixteen places between."""
    size = path.stat().st_size
    digest = blake2b(size.to_bytes(8, "little"), digest_size=16)
    with path.open("rb") as file:
        for part in range(18):
            file.seek(max(0, (size - _SAMPLE_BYTES) * part // 17))
            digest.update(file.read(_SAMPLE_BYTES if part in (0, 17) else _SAMPLE_BYTES >> 4))
    return digest.hexdigest()


def prompt_digest(prompt: list[int]) -> bytes:
    """What tells prompts apart."""
    return blake2b(struct.pack(f"<{len(prompt)}i", *prompt), digest_size=16).digest()


def pack_state(native: bytes, header: Header) -> bytes:
    """The state for another worker, from what llama.cpp wrote of a slot. Takes time in proportion to its size; releases the GIL."""
    head = msgspec.msgpack.encode(header)
    cache = _canonical(native)
    return b"".join((MAGIC, _LENGTH.pack(len(head)), _digest(head, cache), head, cache))


def unpack_state(state: bytes, prompt: list[int], model: str, layout: StateLayout, slots: int) -> tuple[bytes, Header]:
    """What llama.cpp may be given for a slot of a context with so many, and the header. Raises HandoffFailed."""
    try:
        header, cache = _opened(state)
        if (header.build, header.model) != (BUILD, model):
            raise Damaged("it is of another model or of another build of llama.cpp")
        if header.tokens != len(prompt) or header.prompt != prompt_digest(prompt):
            raise Damaged("it is of another prompt")
        _check_structure(cache, len(prompt), layout)
    except Damaged as error:
        raise HandoffFailed(f"The prefill state cannot be used: {error}.") from error
    beside = bytes(_COUNT.size * (slots - 1))
    return b"".join((_SEQUENCE.pack(layout.magic, 0, slots), cache, beside)), header


def read_layout(native: bytes) -> StateLayout:
    """The layout, from what llama.cpp wrote of a slot. Raises Damaged if it is not of the known kind."""
    try:
        return _layout_of(native)
    except struct.error as error:
        raise Damaged("it is too short") from error


def _layout_of(native: bytes) -> StateLayout:
    cache = _canonical(native)
    (magic, _, _) = _SEQUENCE.unpack_from(native)
    (tokens,) = _COUNT.unpack_from(cache)
    offset = _COUNT.size + tokens * _CELL.size
    transposed, layers = _CELLS_END.unpack_from(cache, offset)
    offset += _CELLS_END.size
    parts: list[tuple[int, int]] = []
    while not transposed and offset + _LAYER.size <= len(cache) and len(parts) < 2 * layers:
        kind, row = _LAYER.unpack_from(cache, offset)
        parts.append((kind, row))
        offset += _LAYER.size + row * tokens
    if transposed or len(parts) != 2 * layers or offset != len(cache):
        raise Damaged("it is of a layout that this engine does not know")
    return StateLayout(magic, layers, tuple(parts))


def _canonical(native: bytes) -> memoryview:
    """A slot's cells alone: a context with several slots writes an empty count for each of the others, before and after them."""
    if len(native) < _SEQUENCE.size + _COUNT.size:
        raise Damaged("it is too short")
    _, slot, slots = _SEQUENCE.unpack_from(native)
    if slot >= slots:
        raise Damaged("its slot is not one of its slots")
    return memoryview(native)[_SEQUENCE.size + _COUNT.size * slot : len(native) - _COUNT.size * (slots - 1 - slot)]


def _opened(state: bytes) -> tuple[Header, memoryview]:
    """Header and cache of a state that arrived as it was sent."""
    view = memoryview(state)
    start = len(MAGIC) + _LENGTH.size
    if len(view) < start + _DIGEST_SIZE or bytes(view[: len(MAGIC)]) != MAGIC:
        raise Damaged("it is not a prefill state of this version")
    (length,) = _LENGTH.unpack_from(view, len(MAGIC))
    digest, rest = view[start : start + _DIGEST_SIZE], view[start + _DIGEST_SIZE :]
    if length > min(_MAX_HEADER, len(rest)):
        raise Damaged("it is truncated")
    head, cache = rest[:length], rest[length:]
    if bytes(digest) != _digest(head, cache):
        raise Damaged("it arrived damaged")
    try:
        return _header.decode(head), cache
    except msgspec.DecodeError as error:
        raise Damaged("its header cannot be read") from error


def _digest(head: bytes | memoryview, cache: memoryview) -> bytes:
    digest = blake2b(head, digest_size=_DIGEST_SIZE)
    digest.update(cache)
    return digest.digest()


def _check_structure(cache: memoryview, tokens: int, layout: StateLayout) -> None:
    """Every count and size must be what this worker would have written for so many tokens."""
    cells_end = _COUNT.size + tokens * _CELL.size
    layers_start = cells_end + _CELLS_END.size
    size = layers_start + sum(_LAYER.size + row * tokens for _, row in layout.parts)
    if len(cache) != size or _COUNT.unpack_from(cache) != (tokens,):
        raise Damaged("its size is not that of its tokens")
    cells = _CELL.iter_unpack(cache[_COUNT.size : cells_end])
    if any(position != number or sequences != 1 for number, (position, sequences, _) in enumerate(cells)):
        raise Damaged("its cells are not one prompt's")
    if _CELLS_END.unpack_from(cache, cells_end) != (0, layout.layers):
        raise Damaged("its layers are not this model's")
    offset = layers_start
    for part in layout.parts:
        if _LAYER.unpack_from(cache, offset) != part:
            raise Damaged("its layers are not this model's")
        offset += _LAYER.size + part[1] * tokens
