"""tensorrt_llm.llmapi."""

from tests.fake_tensorrt_llm.v1_2_1.api import LLM, DisaggregatedParams, GuidedDecodingParams, SamplingParams

__all__ = ["LLM", "DisaggregatedParams", "GuidedDecodingParams", "SamplingParams"]
