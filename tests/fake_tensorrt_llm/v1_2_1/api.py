"""The names and signatures of TensorRT-LLM 1.2.1; where they stand is in tests/contract/data/tensorrt_llm.

Any: types of the library that no test needs, and what a caller may get wrong.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.fake_tensorrt_llm.core import Core
from tests.fake_tensorrt_llm.result import RequestOutput
from tests.fake_tensorrt_llm.strictness import check, check_fields
from tests.fake_tensorrt_llm.tensor import Tensor

_LLM_ARGUMENTS = frozenset(
    {
        "model",
        "tokenizer",
        "tokenizer_mode",
        "skip_tokenizer_init",
        "trust_remote_code",
        "tensor_parallel_size",
        "dtype",
        "revision",
        "tokenizer_revision",
        "pipeline_parallel_size",
        "moe_expert_parallel_size",
        "max_batch_size",
        "max_num_tokens",
        "max_seq_len",
        "kv_cache_config",
        "cache_transceiver_config",
        "guided_decoding_backend",
        "enable_chunked_prefill",
        "disable_overlap_scheduler",
    }
)


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    """A form the answer is held to; at most one."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if sum(map(bool, (self.json, self.regex, self.grammar, self.json_object, self.structural_tag))) > 1:
            raise ValueError("Only one guide can be used for a request")


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn, and what is reported."""

    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: str | list[str] | None = None
    bad_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Tensor | None = None
    logits_processor: Callable[..., None] | list[Callable[..., None]] | None = None
    apply_batched_logits_processor: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    top_p_decay: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    beam_width_array: list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: list[Any] | None = None
    lookahead_config: Any = None
    guided_decoding: GuidedDecodingParams | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.temperature is not None and self.temperature <= 0:
            raise ValueError("temperature must be positive; leave it out for greedy decoding")


@dataclass(slots=True, kw_only=True)
class DisaggregatedParams:
    """What the legs of a request tell each other."""

    request_type: str | None = None
    first_gen_tokens: list[int] | None = None
    ctx_request_id: int | None = None
    opaque_state: bytes | None = None
    draft_tokens: list[int] | None = None
    multimodal_embedding_handles: list[dict[str, Any]] | None = None
    multimodal_hashes: list[list[int]] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.request_type not in (None, "context_only", "generation_only", "context_and_generation"):
            raise ValueError(f"Unknown request type: {self.request_type}")
        for number in (self.ctx_request_id,):
            if number is not None and not 0 <= number < 2**63:
                raise ValueError("ids have 63 bits")


class LLM(Core):
    """One model. Further arguments are checked by name."""

    two_ids = False
    known = _LLM_ARGUMENTS

    def __init__(
        self,
        model: str | Path,
        tokenizer: Any = None,
        tokenizer_mode: Literal["auto", "slow"] = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        check("model", model, str | Path)
        check("trust_remote_code", trust_remote_code, bool)
        check("tensor_parallel_size", tensor_parallel_size, int)
        given = {"trust_remote_code": trust_remote_code, "tensor_parallel_size": tensor_parallel_size}
        super().__init__({"model": model, "tokenizer": tokenizer, "revision": revision, **given, **kwargs})

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: DisaggregatedParams | None = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        check("sampling_params", sampling_params, SamplingParams)
        check("streaming", streaming, bool)
        check("disaggregated_params", disaggregated_params, DisaggregatedParams | None)
        check("cache_salt", cache_salt, str | None)
        others = {"cache_salt": cache_salt}
        return self.ask(inputs, sampling_params, disaggregated_params, **others)

    def handed(self, **said: Any) -> DisaggregatedParams:
        return DisaggregatedParams(**said)

    def get_stats_async(self, timeout: float | None = 2) -> AsyncIterator[dict[str, Any]]:
        return self.told()

    def get_kv_cache_events_async(self, timeout: float | None = 2) -> AsyncIterator[dict[str, Any]]:
        return self.told()
