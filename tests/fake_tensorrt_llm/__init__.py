"""Stand-ins of TensorRT-LLM, one per supported version, for where there is no GPU.

    v1_2_1/, v2026_07/   what `import tensorrt_llm` and `import torch` find there: the documented names and signatures
    stage                what a test does to them: no GPU, a model that does not load
    strictness           arguments of the wrong type are errors
    tokenizer, model     bytes as tokens; answers that are a function of the prompt
    tensor               as much of torch as is used
    result               what a request gives back while it grows
    executor             the scheduler: a token per sequence and step; it fails, cancels and hands off
    transfer             where context and generation engines find each other's state
    core                 the LLM both versions are made of

They know the library from its documentation alone and import nothing of our engine. Each folder also works as a PYTHONPATH.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

VERSIONS: Final = {"1.2.1": "v1_2_1", "2026-07": "v2026_07"}
"""The versions there are stand-ins of, and their folders."""
MODEL: Final = "fake-model"
_NAMES: Final = ("tensorrt_llm", "torch")


def folder(version: str) -> Path:
    """What goes on the PYTHONPATH for a version."""
    return Path(__file__).parent / VERSIONS[version]


@contextmanager
def installed(version: str) -> Iterator[None]:
    """In this block `import tensorrt_llm` finds the version's stand-in; afterwards nothing of it is left."""
    path = str(folder(version))
    kept = _taken_out()
    sys.path.insert(0, path)
    try:
        yield
    finally:
        sys.path.remove(path)
        _taken_out()
        sys.modules.update(kept)


def _taken_out() -> dict[str, ModuleType]:
    """The modules of these names, which are no longer found as imported."""
    found = [name for name in sys.modules if name.partition(".")[0] in _NAMES]
    return {name: sys.modules.pop(name) for name in found}
