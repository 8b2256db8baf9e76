"""How one sequence chooses its tokens: checked here, then done by llama.cpp's own samplers.

The order is that of TensorRT-LLM and vLLM: bias, penalties, constraint, temperature, top_k, top_p, min_p, draw. Penalties look at
the whole sequence so far, prompt included.
"""

import math
from collections.abc import Collection
from secrets import randbits
from typing import Final

from worker.engines.base import EngineRefused, Sampling
from worker.engines.llama_cpp.binding import Chain, Context, Weights
from worker.engines.llama_cpp.vocabulary import Vocabulary

BAN: Final = -1e9
"""Added to the scores of tokens that must not come. Finite: if nothing else is left, they come all the same, where minus infinity
would make llama.cpp abort."""
GREEDY_BELOW: Final = 1e-5
"""Temperatures under this one are greedy: dividing by them leaves the range of the numbers."""
_MAX_BIAS: Final = 1e6
_ANY_SEED: Final = 0xFFFFFFFF
"""llama.cpp draws a seed of its own when it is given this one."""


def banned(tokens: Collection[int], vocabulary: Vocabulary) -> dict[int, float]:
    """The biases that keep tokens from coming; ids of no token are left out."""
    return {token: BAN for token in tokens if 0 <= token < vocabulary.size}


def mute(vocabulary: Vocabulary) -> dict[int, float]:
    """A grammar takes a control token for the text of its name, so beside one none of them may come, but the end."""
    return banned(vocabulary.control - vocabulary.ends, vocabulary)


def check_sampling(sampling: Sampling, vocabulary: Vocabulary) -> None:
    """Refuse, by the field's name, what the samplers could not take."""
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        if not math.isfinite(getattr(sampling, name)):
            raise EngineRefused(f"'{name}' must be a finite number.", name)
    if sampling.temperature < 0:
        raise EngineRefused("'temperature' must not be negative.", "temperature")
    if sampling.repetition_penalty <= 0:
        raise EngineRefused("'repetition_penalty' must be more than 0.", "repetition_penalty")
    if not all(math.isfinite(bias) and abs(bias) <= _MAX_BIAS for bias in sampling.logit_bias.values()):
        raise EngineRefused(
            f"The values of 'logit_bias' must lie between -{_MAX_BIAS:g} and {_MAX_BIAS:g}.", "logit_bias"
        )
    if not vocabulary.holds(sampling.logit_bias):
        raise EngineRefused("'logit_bias' names tokens that this model does not have.", "logit_bias")


def drawn_seed() -> int:
    """A seed where the request has none."""
    return randbits(63)


def fold_seed(seed: int) -> int:
    """llama.cpp's seeds have 32 bits: both halves of one with 64 count."""
    bits = seed & 0xFFFFFFFFFFFFFFFF
    folded = (bits ^ (bits >> 32)) & 0xFFFFFFFF
    return folded if folded != _ANY_SEED else _ANY_SEED >> 1


class TokenSampler:
    """One sequence's sampler. Its choices follow from the request, the seed and the logits alone.

    `gbnf` is the constraint's grammar, probed. A chain cannot change the bias it was made with, so where `min_tokens` ends another
    one takes over: it hears of everything so far, and draws from a seed derived from the first.
    """

    def __init__(
        self,
        weights: Weights,
        vocabulary: Vocabulary,
        prompt: list[int],
        sampling: Sampling,
        seed: int,
        gbnf: str,
        window: int,
    ) -> None:
        self._weights = weights
        self._vocabulary = vocabulary
        self._prompt = prompt
        self._sampling = sampling
        self._seed = seed
        self._gbnf = gbnf
        self._window = window
        self._output: list[int] = []
        self._banning = sampling.min_tokens > 0
        self._chain = self._new_chain()

    def sample(self, context: Context, row: int) -> int:
        """The next token, after a row of the last batch that had `logits` set."""
        if self._banning and len(self._output) >= self._sampling.min_tokens:
            self._banning = False
            self._chain.close()
            self._chain = self._new_chain()
        token = context.sample(self._chain, row)
        self._output.append(token)
        return token

    def close(self) -> None:
        """Free it."""
        self._chain.close()

    def _new_chain(self) -> Chain:
        chain, sampling = Chain(), self._sampling
        biases = sampling.logit_bias | self._bans()
        if biases:
            chain.bias(self._vocabulary.size, biases)
        penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        if penalties != (1.0, 0.0, 0.0):
            chain.penalties(self._window, *penalties)
            # Before there is a grammar, which would end the process on a token that it does not allow.
            chain.note(self._prompt)
        if self._gbnf:
            chain.grammar(self._weights, self._gbnf)
        chain.note(self._output)
        self._end(chain)
        return chain

    def _bans(self) -> dict[int, float]:
        """The biases of what must not come, or not yet."""
        vocabulary = self._vocabulary
        early = vocabulary.ends | self._sampling.stop_token_ids if self._banning else ()
        return (mute(vocabulary) if self._gbnf else {}) | banned(early, vocabulary)

    def _end(self, chain: Chain) -> None:
        sampling = self._sampling
        if sampling.temperature < GREEDY_BELOW:
            chain.greedy()
            return
        chain.temperature(sampling.temperature)
        chain.truncate(top_k=min(sampling.top_k, self._vocabulary.size), top_p=sampling.top_p, min_p=sampling.min_p)
        chain.draw(fold_seed(self._seed + len(self._output)))


def ends(sampling: Sampling, vocabulary: Vocabulary, token: int, *, constrained: bool) -> bool:
    """Whether a token is the model's own end. Under a constraint it always is: a grammar that has ended allows nothing else."""
    return token in vocabulary.ends and (constrained or not sampling.ignore_eos)
