"""tensorrt_llm.executor."""

from tests.fake_tensorrt_llm.executor import CppExecutorError

__all__ = ["CppExecutorError"]
