"""The GPU engine: TensorRT-LLM's LLM API in this process, for its 1.2.1 and its main of mid 2026.

    options     what it can be told, and the LLM's arguments that follow from it
    library     the only module that names tensorrt_llm and torch: what is called there, and what this installation takes
    vocabulary  tokens and their exact bytes, from the model's tokenizer
    sampling    our sampling as SamplingParams
    hold_back   keeps stop tokens away for the first tokens of an answer
    handoff     `disaggregated_params` as the library's DisaggregatedParams, both ways
    reading     the library's growing output as ours
    sequence    one sequence: merged while its reader is slow, ended from outside
    background  what blocks for long, on a thread of its own
    engine      the contract of `worker/engines/base.py` over all of that

**Capability by signature.** Whether something exists is asked of `inspect.signature`, never of the version. What every request
needs and is missing stops the start, by name; what only some need is refused for those, by name.

**Tokens, not text.** The library is told not to detokenize: its text is decoded step by step and replaces what is not yet a whole
character, while log probabilities, stop strings and streams need each token's exact bytes. Those come from the tokenizer, and
become text where every engine's do, in `worker/output.py`.

**The state is not ours to move.** The KV cache goes from GPU to GPU inside TensorRT-LLM. What the two legs tell each other are the
fields of `disaggregated_params`, as stock workers write and read them, so that either peer may be a stock one.
"""

from collections.abc import Mapping

from worker.engines.base import Engine


def create(model: str | None, options: Mapping[str, str]) -> Engine:
    """The engine over a model directory or name; `options` are those of `TrtllmOptions`.

    Raises EngineError with a sentence that says what to install, or what is wrong with an option.
    """
    from worker.engines.tensorrt_llm.engine import TensorrtLlmEngine
    from worker.engines.tensorrt_llm.library import load_library
    from worker.engines.tensorrt_llm.options import llm_arguments, read_options

    arguments = llm_arguments(model, read_options(options))
    return TensorrtLlmEngine(load_library(), arguments)
