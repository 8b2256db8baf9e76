"""What the engine can be told: the flags of `trtllm-serve serve` by their names, and its YAML of further LLM arguments."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from worker.engines.base import EngineError

NAME: Final = "tensorrt_llm"
Size = Annotated[int, Meta(ge=1)]
Json = dict[str, Any]
"""Arguments of the library's own, nested as its YAML has them (Any: it checks them itself)."""

_ELSEWHERE: Final = {
    "internal_request_auth_key": "--internal-key",
    "served_model_name": "--served-model-name",
    "model": "--model",
}
"""Keys that a stock worker's YAML may have and that are this worker's own flags."""


class TrtllmOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the engine; what is left out is TensorRT-LLM's own default.

    `tp_size`, `pp_size`, `ep_size`: GPUs over which tensors, layers and experts are spread. `slots` (--slots): the largest batch;
    `context_length` (--context-length): tokens of a sequence, prompt and output; `max_num_tokens`: tokens of one iteration.
    `free_gpu_memory_fraction` and `kv_cache_dtype`: the KV cache. `cache_transceiver`: how the KV cache travels (DEFAULT, UCX,
    NIXL, MOONCAKE, MPI); without it there are no hand-offs. `guided_decoding`: what holds answers to a form (xgrammar,
    llguidance, or none). `extra_llm_api_options`: a YAML file of LLM arguments, as `trtllm-serve` takes it.
    """

    tokenizer: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    tp_size: Size | None = None
    pp_size: Size | None = None
    ep_size: Size | None = None
    slots: Size | None = None
    context_length: Annotated[int, Meta(ge=2)] | None = None
    max_num_tokens: Size | None = None
    free_gpu_memory_fraction: Annotated[float, Meta(gt=0, lt=1)] | None = None
    kv_cache_dtype: str | None = None
    cache_transceiver: str | None = None
    guided_decoding: str = "xgrammar"
    extra_llm_api_options: str | None = None


def read_options(options: Mapping[str, str]) -> TrtllmOptions:
    """The options from their texts. Raises EngineError by name for an unknown or impossible one."""
    known = TrtllmOptions.__struct_fields__
    for name in options:
        if name not in known:
            raise EngineError(f"The engine {NAME} has no option {name!r}; it has {', '.join(known)}.")
    try:
        return msgspec.convert(dict(options), TrtllmOptions, strict=False)
    except msgspec.ValidationError as error:
        raise EngineError(f"An option of the engine {NAME} is wrong: {error}.") from error


def llm_arguments(model: str | None, options: TrtllmOptions) -> Json:
    """What `LLM(...)` is called with. Raises EngineError for a missing model, an unreadable YAML, or a key given twice."""
    if model is None:
        raise EngineError(
            f"The engine {NAME} needs a model: --model takes a directory or a name TensorRT-LLM can load."
        )
    own = _given(
        model=model,
        tokenizer=options.tokenizer,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code or None,
        tensor_parallel_size=options.tp_size,
        pipeline_parallel_size=options.pp_size,
        moe_expert_parallel_size=options.ep_size,
        max_batch_size=options.slots,
        max_seq_len=options.context_length,
        max_num_tokens=options.max_num_tokens,
        kv_cache_config=_given(free_gpu_memory_fraction=options.free_gpu_memory_fraction, dtype=options.kv_cache_dtype),
        cache_transceiver_config=_given(backend=options.cache_transceiver),
    )
    arguments = _joined(own, _extra(options.extra_llm_api_options))
    if options.guided_decoding != "none":
        arguments.setdefault("guided_decoding_backend", options.guided_decoding)
    return arguments


def _given(**values: Any) -> Json:
    """Those that say something."""
    return {name: value for name, value in values.items() if value is not None and value != {}}


def _joined(own: Json, extra: Json, path: str = "") -> Json:
    """Both, nested maps key by key. Who says a thing twice is asked to say it once."""
    joined = dict(own)
    for name, value in extra.items():
        mine = own.get(name)
        if isinstance(mine, dict) and isinstance(value, dict):
            joined[name] = _joined(mine, value, f"{path}{name}.")
        elif mine is not None and mine != value:
            raise EngineError(
                f"'{path}{name}' is {value!r} in the YAML of extra_llm_api_options and {mine!r} on its own."
            )
        else:
            joined[name] = value
    return joined


def _extra(file: str | None) -> Json:
    """The further arguments. The YAML may be empty."""
    if file is None:
        return {}
    import yaml

    try:
        read = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise EngineError(f"The YAML of extra_llm_api_options cannot be read: {error}.") from error
    if read is None:
        return {}
    if not isinstance(read, dict) or not all(isinstance(name, str) for name in read):
        raise EngineError(f"The YAML of extra_llm_api_options ({file}) is no map of LLM arguments.")
    for name in read:
        if name in _ELSEWHERE:
            raise EngineError(f"'{name}' is no LLM argument: give it to the worker, as {_ELSEWHERE[name]}.")
    return read
