"""The engine tensorrt_llm over a stand-in of the library, and a look behind it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from tests.fake_tensorrt_llm import MODEL, installed
from tests.fake_tensorrt_llm.core import Core
from worker.engines import create_engine
from worker.engines.tensorrt_llm.engine import TensorrtLlmEngine

OPTIONS: Mapping[str, str] = {"context_length": "2048", "cache_transceiver": "DEFAULT"}


def trtllm(version: str, model: str | None = MODEL, **options: str) -> TensorrtLlmEngine:
    """The engine of one version, not started."""
    with installed(version):
        return cast(TensorrtLlmEngine, create_engine("tensorrt_llm", model, {**OPTIONS, **options}))


@asynccontextmanager
async def started(version: str, **options: str) -> AsyncIterator[TensorrtLlmEngine]:
    """The same, started; closed at the end."""
    engine = trtllm(version, **options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def behind(engine: TensorrtLlmEngine) -> Core:
    """The stand-in's LLM that a started engine runs."""
    assert engine._loaded is not None
    return cast(Core, engine._loaded.llm)


def asked(engine: TensorrtLlmEngine) -> Mapping[str, Any]:
    """What the last request asked of it. Any: objects of the stand-in."""
    return behind(engine).asked[-1]
