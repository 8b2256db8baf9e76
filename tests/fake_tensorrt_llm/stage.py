"""What a test does to the stand-ins. A module, so that every version of them sees the same."""

from dataclasses import dataclass


@dataclass
class Stage:
    """`gpu`: whether CUDA is there. `step_seconds`: how long the executor takes for a token of every sequence."""

    gpu: bool = True
    step_seconds: float = 0.001


STAGE = Stage()
