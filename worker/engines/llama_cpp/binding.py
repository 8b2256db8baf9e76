"""The edge to `cyllama` 0.2.18 (llama.cpp b9190): the only module that names it.

Its objects are untyped and many of its calls abort the process on arguments they do not expect. What is offered here is typed, and
says what the caller must have checked. A `Context` belongs to one thread at a time, `cancel` excepted.
"""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import cyllama.llama.llama_cpp as native
import numpy as np
from numpy.typing import NDArray

from worker.engines.base import EngineError

BUILD: Final = f"cyllama {version('cyllama')}"
"""States and their layout are those of one build of llama.cpp."""
CACHE_BYTES: Final = 1 << 30
"""What the key-value cache of all slots may take if nobody says how long a context should be."""

Logits = NDArray[np.float32]


class _NativeModel(native.LlamaModel):  # type: ignore[misc]  # untyped
    # `LlamaContext.get_logits_ith` reads this attribute, which LlamaModel does not have.
    n_vocab = 0


class Weights:
    """A loaded model. Never closed by hand: it is freed when nothing refers to it any more, so no thread can use it after that."""

    def __init__(self, path: Path, *, repacked: bool = True) -> None:
        """Map the file. `repacked` lets llama.cpp keep a copy in a layout that is faster to compute with."""
        native.disable_logging()
        native.ggml_backend_load_all()
        params = native.LlamaModelParams()
        params.n_gpu_layers = 0
        params.use_extra_bufts = repacked
        try:
            self.model: Any = _NativeModel(str(path), params)
        except Exception as error:
            raise EngineError(f"llama.cpp cannot load the model {path}.") from error
        # Any: cyllama has no types.
        self.vocab: Any = self.model.get_vocab()
        self.model.n_vocab = self.vocab.n_vocab

    @property
    def context_length(self) -> int:
        """Tokens the model was trained to look back on. Later positions are not refused by llama.cpp, only nonsense."""
        return int(self.model.n_ctx_train)

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers, in 16-bit floats."""
        model = self.model
        return int(model.n_layer * 2 * (model.n_embd // model.n_head * model.n_head_kv) * 2)

    def metadata(self, key: str) -> str | None:
        """A text of the file's header, None if it has none by that name."""
        try:
            return str(self.model.meta_val_str(key))
        except ValueError:
            return None


class Row:
    """One token of a batch: what, at which position, of which slot, and whether its logits are wanted."""

    __slots__ = ("logits", "position", "slot", "token")

    def __init__(self, token: int, position: int, slot: int, *, logits: bool) -> None:
        self.token = token
        self.position = position
        self.slot = slot
        self.logits = logits


class Context:
    """The key-value cache of all slots, and the arithmetic.

    What makes results independent of the batch they were computed in: every slot has cells of its own (`kv_unified` off), flash
    attention is left to llama.cpp, and a batch has fewer than 64 rows. The caller adds that a prompt's last token is evaluated as
    the only one of its slot.
    """

    def __init__(self, weights: Weights, *, slots: int, length: int, rows: int, threads: int) -> None:
        params = native.LlamaContextParams()
        params.n_seq_max = slots
        params.n_ctx = length * slots
        params.n_batch = params.n_ubatch = rows
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        try:
            self._context: Any = native.LlamaContext(weights.model, params)
        except Exception as error:
            message = f"llama.cpp cannot set up {slots} slots of {length} tokens: is there memory for them?"
            raise EngineError(message) from error
        self._context.install_cancel_callback()
        self._batch: Any = native.LlamaBatch(n_tokens=rows, embd=0, n_seq_max=1)
        self.slots = slots
        self.rows = rows

    def evaluate(self, rows: Sequence[Row]) -> None:
        """Compute a batch: 1 to `self.rows` rows, each at the next position of its slot, which must have room. Releases the GIL.

        Raises InterruptedError if cancelled meanwhile.
        """
        if not 0 < len(rows) <= self.rows:
            raise ValueError(f"A batch has 1 to {self.rows} rows, not {len(rows)}.")
        self._batch.clear()
        for row in rows:
            self._batch.add(row.token, row.position, [row.slot], row.logits)
        self._context.decode(self._batch)

    def logits(self, row: int) -> Logits:
        """The model's own scores for what follows a row of the last batch that had `logits` set."""
        scores = self._context.get_logits_ith(row)
        return np.fromiter(scores, np.float32, len(scores))

    def sample(self, chain: "Chain", row: int) -> int:
        """The next token after a row of the last batch, which **must** have had `logits` set. The chain takes note of it."""
        return int(chain.native.sample(self._context, row))

    def forget(self, slot: int, position: int = 0) -> None:
        """Drop what a slot holds from a position on."""
        self._context.memory_seq_rm(self._checked(slot), position or -1, -1)

    def last_position(self, slot: int) -> int:
        """The highest position a slot holds, -1 if it is empty."""
        return int(self._context.memory_seq_pos_max(self._checked(slot)))

    def export_state(self, slot: int) -> bytes:
        """Everything a slot holds, as llama.cpp writes it. Holds the GIL: some 40 ms per thousand tokens of the demo model."""
        state: bytes = self._context.get_state_seq_data(self._checked(slot))
        return state

    def import_state(self, slot: int, state: bytes) -> None:
        """Replace what a slot holds. The bytes **must** be of the layout of this context: llama.cpp believes what they say.

        Raises ValueError if llama.cpp refuses them after all; then the slot is empty.
        """
        try:
            self._context.set_state_seq_data(state, self._checked(slot))
        except ValueError:
            self.forget(slot)
            raise

    def cancel(self) -> None:
        """Make the batch being computed, and every later one, fail at once. The one call for other threads."""
        self._context.cancel = True

    def close(self) -> None:
        """Free the cache. Nothing may be called afterwards."""
        self._batch.close()
        self._context.close()

    def _checked(self, slot: int) -> int:
        if not 0 <= slot < self.slots:
            raise ValueError(f"There is no slot {slot}.")
        return slot


class Chain:
    """A llama.cpp sampler chain: members in the order in which they are added. The last must be `greedy` or `draw`."""

    def __init__(self) -> None:
        # Any: cyllama has no types.
        self.native: Any = native.LlamaSampler(native.LlamaSamplerChainParams())

    def bias(self, vocabulary_size: int, biases: dict[int, float]) -> None:
        """Add to the scores of tokens: ids of the vocabulary, finite numbers."""
        self.native.add_logit_bias(vocabulary_size, list(biases.items()))

    def penalties(self, window: int, repetition: float, frequency: float, presence: float) -> None:
        """Make the last `window` tokens less likely."""
        self.native.add_penalties(window, repetition, frequency, presence)

    def grammar(self, weights: Weights, gbnf: str) -> None:
        """Allow only what the grammar's `root` allows. It **must** have been probed: a bad one ends the process."""
        self.native.add_grammar(weights.vocab, gbnf, "root")

    def truncate(self, *, top_k: int, top_p: float, min_p: float) -> None:
        """Keep the likeliest tokens only. A 0, a 1 and a 0 keep everything."""
        if top_k > 0:
            self.native.add_top_k(top_k)
        if top_p < 1:
            self.native.add_top_p(top_p, 1)
        if min_p > 0:
            self.native.add_min_p(min_p, 1)

    def temperature(self, value: float) -> None:
        """Divide the scores."""
        self.native.add_temp(value)

    def greedy(self) -> None:
        """End the chain: the likeliest token."""
        self.native.add_greedy()

    def draw(self, seed: int) -> None:
        """End the chain: a token by chance, from a seed of 32 bits. The largest one would mean any, so it is not allowed."""
        if not 0 <= seed < 0xFFFFFFFF:
            raise ValueError("A seed is a number of 32 bits, and not the largest of them.")
        self.native.add_dist(seed)

    def note(self, tokens: Sequence[int]) -> None:
        """Tell the members added so far about tokens that were not sampled here. A grammar must allow each of them."""
        for token in tokens:
            self.native.accept(token)

    def close(self) -> None:
        """Free it."""
        self.native.close()
