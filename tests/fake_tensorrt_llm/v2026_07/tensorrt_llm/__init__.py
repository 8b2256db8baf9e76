"""tensorrt_llm."""

from tests.fake_tensorrt_llm.v2026_07.api import LLM, SamplingParams

__version__ = "1.4.0rc0"
__all__ = ["LLM", "SamplingParams", "__version__"]
