"""tensorrt_llm.llmapi."""

from tests.fake_tensorrt_llm.v2026_07.api import (
    LLM,
    DisaggregatedParams,
    DisaggScheduleStyle,
    GuidedDecodingParams,
    SamplingParams,
)

__all__ = ["LLM", "DisaggScheduleStyle", "DisaggregatedParams", "GuidedDecodingParams", "SamplingParams"]
