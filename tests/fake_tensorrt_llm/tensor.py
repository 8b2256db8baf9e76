"""As much of torch as is used: one-dimensional tensors of numbers, and what is asked of them."""

import math
from collections.abc import Iterator, Sequence
from types import EllipsisType

from tests.fake_tensorrt_llm.stage import STAGE

float32 = "float32"


class Tensor:
    """Numbers in a row."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = list(values)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[float]:
        return iter(self.values)

    def __getitem__(self, place: int) -> float:
        return self.values[place]

    def __setitem__(self, place: "int | tuple[EllipsisType, list[int]]", value: float) -> None:
        for one in [place] if isinstance(place, int) else place[1]:
            self.values[one] = value

    def to(self, *, dtype: str) -> "Tensor":
        """Itself: there is one precision."""
        assert dtype == float32
        return self


def zeros(size: int, *, dtype: str) -> Tensor:
    """Zeros."""
    assert dtype == float32
    return Tensor([0.0] * size)


def log_softmax(row: Tensor, dim: int) -> Tensor:
    """Log probabilities."""
    assert dim == -1
    highest = max(row)
    total = math.log(sum(math.exp(value - highest) for value in row)) + highest
    return Tensor([value - total for value in row])


def topk(row: Tensor, k: int) -> tuple[list[float], list[int]]:
    """The highest values and where they are."""
    places = sorted(range(len(row)), key=lambda place: -row[place])[:k]
    return [row[place] for place in places], places


class Cuda:
    """torch.cuda."""

    @staticmethod
    def is_available() -> bool:
        """As the test has it."""
        return STAGE.gpu


cuda = Cuda()
