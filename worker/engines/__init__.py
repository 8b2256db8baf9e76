"""The engines there are. Importing this package imports none of them: a factory does its heavy imports when it is called."""

from collections.abc import Mapping
from importlib import import_module
from typing import Final, NamedTuple

from worker.engines.base import Engine, EngineError


class Entry(NamedTuple):
    """Where an engine's factory is (`module:function`), and the extra of packrelay that brings its libraries."""

    factory: str
    extra: str


ENGINES: Final[dict[str, Entry]] = {
    "llama_cpp": Entry("worker.engines.llama_cpp:create", "cpu"),
    "scripted": Entry("worker.engines.scripted:create", "worker"),
    "tensorrt_llm": Entry("worker.engines.tensorrt_llm:create", "trtllm"),
}


def create_engine(name: str, model: str | None, options: Mapping[str, str]) -> Engine:
    """Build an engine, not started. `model` is a path or name as the engine understands it, None its default.

    Raises EngineError with a sentence: for an unknown name the known ones, for a missing library the extra to install.
    """
    entry = ENGINES.get(name)
    if entry is None:
        raise EngineError(f"There is no engine '{name}'; known are {', '.join(sorted(ENGINES))}.")
    module, _, function = entry.factory.partition(":")
    try:
        engine: Engine = getattr(import_module(module), function)(model, options)
    except ModuleNotFoundError as missing:
        library = (missing.name or "").partition(".")[0]
        if library in ("worker", "schemas"):
            raise
        hint = f"needs the extra `{entry.extra}` (`{library}` is not installed): pip install 'packrelay[{entry.extra}]'"
        raise EngineError(f"The engine '{name}' {hint}.") from missing
    return engine
