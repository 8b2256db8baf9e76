"""tensorrt_llm."""

from tests.fake_tensorrt_llm.v1_2_1.api import LLM, SamplingParams

__version__ = "1.2.1"
__all__ = ["LLM", "SamplingParams", "__version__"]
