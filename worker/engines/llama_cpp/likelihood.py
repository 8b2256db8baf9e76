"""Log probabilities, of the model's own distribution: before bias, penalties, temperature and constraint."""

from collections.abc import Sequence

import numpy as np

from worker.engines.base import Candidate, Token
from worker.engines.llama_cpp.binding import Logits


def scored(token: int, text: bytes, logits: Logits, alternatives: int, names: Sequence[bytes]) -> Token:
    """A token with its natural log probability and the likeliest alternatives, likeliest first; `names` are all tokens' bytes."""
    logprobs = log_softmax(logits)
    top = [Candidate(other, names[other], float(logprobs[other])) for other in likeliest(logprobs, alternatives)]
    return Token(id=token, data=text, logprob=float(logprobs[token]), top=top)


def log_softmax(logits: Logits) -> Logits:
    """Natural log probabilities, in the precision of the model."""
    shifted = logits - logits.max()
    normalised: Logits = shifted - np.log(np.exp(shifted).sum())
    return normalised


def likeliest(logprobs: Logits, count: int) -> list[int]:
    """The ids of the highest values, highest first; equals in the order of their ids."""
    if count <= 0:
        return []
    if count >= len(logprobs):
        found = np.arange(len(logprobs))
    else:
        found = np.flatnonzero(logprobs >= np.partition(logprobs, -count)[-count])
    order = np.lexsort((found, -logprobs[found]))
    return [int(token) for token in found[order][:count]]
