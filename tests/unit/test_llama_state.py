"""Prefill state as bytes: nothing but what this build, model and prompt would have written gets past Python."""

import struct
from pathlib import Path

import pytest

from worker.engines.base import HandoffFailed
from worker.engines.llama_cpp.binding import BUILD
from worker.engines.llama_cpp.state import (
    MAGIC,
    Damaged,
    Header,
    StateLayout,
    fingerprint,
    pack_state,
    prompt_digest,
    read_layout,
    unpack_state,
)

PROMPT = [5, 6, 7]
LAYOUT = StateLayout(0xABCD, 1, ((1, 4), (1, 2)))
"""One layer: keys of 4 bytes a token, values of 2."""


def native(
    slot: int = 1, slots: int = 3, tokens: int = 3, *, positions: list[int] | None = None, kind: int = 1
) -> bytes:
    """What llama.cpp would write of a slot."""
    cells = b"".join(struct.pack("<iII", position, 1, slot) for position in positions or range(tokens))
    layers = b"".join(struct.pack("<iQ", kind, row) + b"k" * row * tokens for row in (4, 2))
    own = struct.pack("<I", tokens) + cells + struct.pack("<II", 0, 1) + layers
    return struct.pack("<III", 0xABCD, slot, slots) + bytes(4 * slot) + own + bytes(4 * (slots - 1 - slot))


def header(build: str = BUILD, model: str = "m", tokens: int = 3, prompt: list[int] = PROMPT) -> Header:
    """A header that fits, but for what a test changes."""
    return Header(build=build, model=model, tokens=tokens, prompt=prompt_digest(prompt), seed=7)


def unpacked(state: bytes, slots: int = 2) -> tuple[bytes, Header]:
    """The state, taken apart by a worker with so many slots."""
    return unpack_state(state, PROMPT, "m", LAYOUT, slots)


def test_layout_is_read_from_what_llama_cpp_writes() -> None:
    """Kinds and sizes of keys and values follow from one state."""
    assert read_layout(native()) == LAYOUT


@pytest.mark.parametrize("written", [b"", native()[:-5], native()[:4] + bytes([9]) + native()[5:], native() + bytes(7)])
def test_an_unknown_layout_is_noticed(written: bytes) -> None:
    """Bytes that are not what this build is known to write have no layout."""
    with pytest.raises(Damaged):
        read_layout(written)


def test_a_state_fits_workers_with_other_slots() -> None:
    """What one worker wrote of its second slot of three is what another one with two slots takes."""
    taken, told = unpacked(pack_state(native(slot=1, slots=3), header()))

    ours = native(slot=0, slots=2)
    assert (len(taken), taken[:12], told.seed) == (len(ours), ours[:12], 7)
    assert read_layout(taken) == LAYOUT


@pytest.mark.parametrize("offset", [0, 5, 9, 20, 60, -1])
def test_a_flipped_bit_is_noticed(offset: int) -> None:
    """A state that differs in any one bit is refused."""
    state = bytearray(pack_state(native(), header()))
    state[offset] ^= 1

    with pytest.raises(HandoffFailed):
        unpacked(bytes(state))


def test_every_truncation_is_noticed() -> None:
    """However much is missing at the end, or added to it, the state is refused."""
    state = pack_state(native(), header())

    for damaged in [*(state[:end] for end in range(len(state))), state + b"\0", MAGIC * 20]:
        with pytest.raises(HandoffFailed):
            unpacked(damaged)


@pytest.mark.parametrize(
    "other",
    [header(build="cyllama 0"), header(model="n"), header(tokens=4), header(prompt=[5, 6, 8])],
    ids=["build", "model", "tokens", "prompt"],
)
def test_a_state_of_something_else_is_refused(other: Header) -> None:
    """A sound state of another build, model or prompt is not gone on from."""
    with pytest.raises(HandoffFailed, match="another"):
        unpacked(pack_state(native(), other))


@pytest.mark.parametrize(
    "written",
    [
        native(tokens=2),
        native(tokens=4),
        native(positions=[0, 1, 1]),
        native(positions=[0, 1, 2**31 - 1]),
        native(kind=2),
        native().replace(struct.pack("<II", 0, 1), struct.pack("<II", 1, 1)),
        native().replace(struct.pack("<I", 3) + struct.pack("<iII", 0, 1, 1), struct.pack("<IiII", 2**31, 0, 1, 1)),
        native().replace(struct.pack("<iQ", 1, 2), struct.pack("<iQ", 1, 2**62)),
    ],
)
def test_a_forged_structure_is_refused(written: bytes) -> None:
    """With a checksum that is right, counts, positions, kinds and sizes must still be those of the prompt and the model."""
    with pytest.raises(HandoffFailed):
        unpacked(pack_state(written, header()))


def test_models_have_fingerprints(tmp_path: Path) -> None:
    """Files of another size, beginning, middle or end have another fingerprint; the same content has the same."""
    content = bytearray(20 << 20)
    prints = set()
    for place in (None, 0, (len(content) - (1 << 20)) * 8 // 17, len(content) - 1):
        changed = bytearray(content)
        if place is not None:
            changed[place] = 1
        file = tmp_path / f"{place}.gguf"
        file.write_bytes(changed)
        prints.add(fingerprint(file))
    (tmp_path / "again.gguf").write_bytes(content)

    assert len(prints) == 4
    assert fingerprint(tmp_path / "again.gguf") in prints
