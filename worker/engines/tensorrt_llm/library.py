"""The only module that names tensorrt_llm and torch.

What we call there is written down in NEEDED and OPTIONAL, and nothing else may be passed; tests hold the two tables, and the fakes
the other tests run on, against the signatures in tests/contract/data/tensorrt_llm.
"""

from collections.abc import AsyncIterator, Mapping
from inspect import signature
from typing import Any, Final, NamedTuple

from worker.engines.base import EngineError

Foreign = Any
"""An object of the library's: it has types, but they are not there to be checked against."""

NEEDED: Final[Mapping[str, frozenset[str]]] = {
    "LLM": frozenset({"model", "tokenizer", "trust_remote_code", "tensor_parallel_size", "revision"}),
    "LLM.generate_async": frozenset({"inputs", "sampling_params", "streaming"}),
    "SamplingParams": frozenset(
        {
            "max_tokens",
            "min_tokens",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "top_p_min",
            "seed",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "embedding_bias",
            "logits_processor",
            "stop_token_ids",
            "include_stop_str_in_output",
            "ignore_eos",
            "logprobs",
            "return_context_logits",
            "guided_decoding",
            "detokenize",
        }
    ),
    "GuidedDecodingParams": frozenset({"json", "json_object", "regex", "grammar"}),
    "DisaggregatedParams": frozenset(
        {"request_type", "first_gen_tokens", "ctx_request_id", "opaque_state", "draft_tokens"}
    ),
}
"""What every supported version takes, by what is called."""

OPTIONAL: Final[Mapping[str, frozenset[str]]] = {
    "LLM": frozenset(),
    "LLM.generate_async": frozenset({"disaggregated_params", "cache_salt", "priority"}),
    "SamplingParams": frozenset({"prompt_ignore_length", "thinking_token_budget"}),
    "GuidedDecodingParams": frozenset(),
    "DisaggregatedParams": frozenset(
        {
            "first_gen_log_probs",
            "disagg_request_id",
            "ctx_dp_rank",
            "ctx_info_endpoint",
            "schedule_style",
            "ctx_usage",
        }
    ),
}
"""What only some versions take: asked for with `Shape.takes` before it is passed."""

LLM_ARGUMENTS: Final = frozenset(
    {
        "pipeline_parallel_size",
        "moe_expert_parallel_size",
        "max_batch_size",
        "max_seq_len",
        "max_num_tokens",
        "kv_cache_config",
        "cache_transceiver_config",
        "guided_decoding_backend",
    }
)
"""What we pass to `LLM` beyond its named parameters; it checks them, and whatever a YAML adds, against its own list."""

_INSTALL: Final = (
    "pip install 'packrelay[trtllm]' with NVIDIA's package index, as TensorRT-LLM's installation guide says"
)


class Shape:
    """One callable of the library: what it takes. Raises EngineError if that is not what every request needs."""

    def __init__(self, name: str, function: Foreign, version: str) -> None:
        self.function = function
        self._name = name
        self._parameters = frozenset(signature(function).parameters)
        missing = sorted(NEEDED[name] - self._parameters)
        if missing:
            message = (
                f"TensorRT-LLM {version} is not a version packrelay knows: its {name} has no {', '.join(missing)}."
            )
            raise EngineError(message)

    def takes(self, parameter: str) -> bool:
        """Whether this installation knows a parameter that not every version has."""
        if parameter not in OPTIONAL[self._name]:
            raise KeyError(f"{parameter} is not among the optional parameters of {self._name}")
        return parameter in self._parameters

    def __call__(self, *instance: Foreign, **arguments: Foreign) -> Foreign:
        """Call it, a method on its `instance`, with nothing but what is written down above."""
        unknown = arguments.keys() - NEEDED[self._name] - OPTIONAL[self._name]
        if unknown:
            raise KeyError(f"{', '.join(sorted(unknown))}: not written down for {self._name}")
        return self.function(*instance, **arguments)


class Library(NamedTuple):
    """The library as this engine calls it."""

    version: str
    llm: Shape
    generate_async: Shape
    sampling_params: Shape
    guided_decoding_params: Shape
    disaggregated_params: Shape
    schedule_style: Foreign | None
    """The enumeration of the two orders, None where there is one order only."""
    logprob: Foreign
    fatal: type[Exception]
    """What it raises when its executor is lost."""
    torch: Foreign

    # --- one LLM ---

    def build(self, arguments: Mapping[str, Foreign]) -> Foreign:
        """Load a model: minutes. Raises EngineError with the reason."""
        if not self.torch.cuda.is_available():
            message = "TensorRT-LLM needs an NVIDIA GPU and its driver: no CUDA device is visible to this process."
            raise EngineError(message)
        try:
            # Not through the shape: what a YAML adds is checked by the library's own list.
            return self.llm.function(**arguments)
        except Exception as error:
            raise EngineError(f"TensorRT-LLM {self.version} cannot load the model: {error}") from error

    # --- values ---

    def bias(self, values: Mapping[int, float], size: int) -> Foreign:
        """Biases of tokens as the tensor over the vocabulary that `embedding_bias` is."""
        tensor = self.torch.zeros(size, dtype=self.torch.float32)
        for token, value in values.items():
            tensor[token] = value
        return tensor

    def likelihoods(
        self, logits: Foreign, tokens: list[int], count: int
    ) -> list[tuple[float, list[tuple[int, float]]]]:
        """Of each token its log probability, and the likeliest `count` with theirs; `logits` has one row per token."""
        torch = self.torch
        found = []
        for row, token in zip(logits, tokens, strict=True):
            # Row by row: all rows of a long prompt at once, in single precision, can be gigabytes.
            logprobs = torch.log_softmax(row.to(dtype=torch.float32), dim=-1)
            values, indices = torch.topk(logprobs, k=count) if count else ([], [])
            top = [(int(index), float(value)) for index, value in zip(indices, values, strict=True)]
            found.append((float(logprobs[token]), top))
        return found


def load_library() -> Library:
    """Import it, which takes a while. Raises EngineError with what to install."""
    try:
        import tensorrt_llm
        import torch
        from tensorrt_llm import executor, llmapi
        from tensorrt_llm.executor.result import Logprob
    except ModuleNotFoundError as error:
        raise EngineError(f"The engine tensorrt_llm needs {error.name}: {_INSTALL}") from error
    except (ImportError, OSError) as error:
        # Its compiled parts are loaded on import: without CUDA's libraries that fails.
        raise EngineError(
            f"TensorRT-LLM is installed but cannot be loaded; it needs CUDA's libraries: {error}"
        ) from error
    version = str(tensorrt_llm.__version__)
    return Library(
        version=version,
        llm=Shape("LLM", llmapi.LLM, version),
        generate_async=Shape("LLM.generate_async", llmapi.LLM.generate_async, version),
        sampling_params=Shape("SamplingParams", llmapi.SamplingParams, version),
        guided_decoding_params=Shape("GuidedDecodingParams", llmapi.GuidedDecodingParams, version),
        disaggregated_params=Shape("DisaggregatedParams", llmapi.DisaggregatedParams, version),
        schedule_style=getattr(llmapi, "DisaggScheduleStyle", None),
        logprob=Logprob,
        fatal=executor.CppExecutorError,
        torch=torch,
    )


async def drained(results: AsyncIterator[Foreign], limit: int) -> list[Foreign]:
    """What a queue of the library's holds, at most `limit` of it: it ends by itself, or by an IndexError when it is empty."""
    found: list[Foreign] = []
    try:
        async for item in results:
            found.append(item)
            if len(found) >= limit:
                break
    except IndexError:
        pass
    return found
