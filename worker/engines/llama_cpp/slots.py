"""The slots that no sequence runs in, and what their caches still hold."""

from collections.abc import Sequence


class FreeSlots:
    """Slots to be had, longest free first, each with the tokens whose keys and values it holds."""

    def __init__(self, count: int) -> None:
        self._held: dict[int, Sequence[int]] = dict.fromkeys(range(count), ())

    def __bool__(self) -> bool:
        return bool(self._held)

    def take(self, prompt: Sequence[int], *, reuse: bool = True) -> tuple[int, int]:
        """A slot for a prompt, and how many of its tokens are there already: the slot with the most, if `reuse`.

        Never the last token of the prompt: what follows it can only be known by evaluating it.
        """
        slot, kept = next(iter(self._held)), 0
        for other, held in self._held.items() if reuse else ():
            common = common_prefix(held, prompt)
            if common > kept:
                slot, kept = other, common
        del self._held[slot]
        return slot, min(kept, len(prompt) - 1)

    def give(self, slot: int, held: Sequence[int]) -> None:
        """Nobody runs in the slot any more."""
        self._held[slot] = held


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    for number, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return number
    return min(len(one), len(other))
