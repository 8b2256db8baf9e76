"""Stop tokens are kept away until an answer has its `min_tokens`: the library holds back the end token only."""

from typing import Any

from msgspec import Struct


class HoldBack(Struct):
    """A logits processor of one sequence. It is pickled into the executor's process, and counts its calls there: one a token.

    `tokens` may not be generated yet while `left` tokens are to come before.
    """

    tokens: list[int]
    left: int

    def __call__(  # the library's signature: it passes all five by position
        self,
        req_id: int,  # noqa: ARG002
        logits: Any,
        token_ids: list[list[int]],  # noqa: ARG002
        stream_ptr: int | None,  # noqa: ARG002
        client_id: int | None,  # noqa: ARG002
    ) -> None:
        """Change the logits of the next token in place. Any: a tensor whose last axis is the vocabulary."""
        if self.left > 0:
            self.left -= 1
            logits[..., self.tokens] = float("-inf")
