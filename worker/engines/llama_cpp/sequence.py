"""One sequence, as the engine thread knows it."""

from typing import Literal

from worker.engines.base import Leg, SequenceRequest, Token
from worker.engines.llama_cpp.binding import Row
from worker.engines.llama_cpp.outbox import Outbox
from worker.engines.llama_cpp.sampling import TokenSampler, drawn_seed


class LlamaSequence:
    """What was asked for, and how far it has come. The engine thread's alone, but for `aborted` and `outbox`.

    `tokens` are prompt and output; the slot's cache holds the first `position` of them, the rest are still to be evaluated.
    `imported` is a state to go on from, as llama.cpp takes it.
    """

    def __init__(self, request: SequenceRequest, outbox: Outbox) -> None:
        self.request = request
        self.outbox = outbox
        self.aborted = False
        given = request.sampling.seed
        self.seed = drawn_seed() if given is None else given
        self.gbnf = ""
        self.imported: bytes | None = None
        self.slot = -1
        self.tokens = list(request.prompt)
        self.position = 0
        self.cached_tokens = 0
        self.scored_prompt: list[Token] = []
        self.sampler: TokenSampler | None = None

    @property
    def pending(self) -> int:
        """Tokens that are not in the cache yet."""
        return len(self.tokens) - self.position

    def rows(self, count: int) -> list[Row]:
        """The next `count` of them, as they go into a batch."""
        logits = self.pending == 1 or self.scores_prompt
        positions = range(self.position, self.position + count)
        return [Row(self.tokens[position], position, self.slot, logits=logits) for position in positions]

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's log probabilities are to be reported. Those of a generation leg came from its context leg."""
        return self.request.sampling.prompt_logprobs is not None and self.request.leg != Leg.GENERATION

    @property
    def output_tokens(self) -> int:
        """How many were generated."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def begins(self) -> bool:
        """Whether nothing has been said of it yet but its first token, if that."""
        return self.output_tokens <= 1

    def used_up(self, context_length: int) -> Literal["length"] | None:
        """Whether it ends here for want of room, by request or by context; a context leg ends after its first token."""
        limit = 1 if self.request.leg == Leg.CONTEXT else self.request.sampling.max_tokens
        return "length" if self.output_tokens >= limit or len(self.tokens) >= context_length else None
