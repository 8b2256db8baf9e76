"""tensorrt_llm.executor.result."""

from tests.fake_tensorrt_llm.result import Logprob

__all__ = ["Logprob"]
