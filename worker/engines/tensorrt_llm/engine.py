"""TensorRT-LLM behind the engine contract."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

import structlog
from msgspec import Struct

from worker.engines.base import (
    Capability,
    Engine,
    EngineDead,
    EngineError,
    EngineFacts,
    EngineRefused,
    SequenceOutput,
    SequenceRequest,
)
from worker.engines.tensorrt_llm.background import in_background
from worker.engines.tensorrt_llm.handoff import library_params
from worker.engines.tensorrt_llm.library import Foreign, Library, drained
from worker.engines.tensorrt_llm.options import NAME, Json
from worker.engines.tensorrt_llm.reading import Reading
from worker.engines.tensorrt_llm.sampling import extensions_of, request_arguments, sampling_params
from worker.engines.tensorrt_llm.sequence import TrtllmSequence
from worker.engines.tensorrt_llm.vocabulary import Vocabulary

CLOSE_SECONDS: Final = 8.0
"""How long `close` waits for the library to shut down; it goes on doing so on its thread."""
TELL_SECONDS: Final = 0.1
"""How long the library waits for one more event or statistic before it says that there are no more."""
DEFAULT_BATCH_SIZE: Final = 2048
"""The library's own, where its arguments leave it open."""
MAX_TOLD: Final = 65536
"""Events or statistics told at once at most; the others are told the next time."""

_CAPABILITIES: Final = frozenset({Capability.LOGPROBS, Capability.PROMPT_LOGPROBS, Capability.LOGIT_BIAS})
_GUIDED: Final = frozenset({Capability.JSON, Capability.REGEX, Capability.GRAMMAR})
_log = structlog.get_logger(__name__)


class _Loaded(Struct, frozen=True):
    """What is there once the model is loaded."""

    llm: Foreign
    vocabulary: Vocabulary
    facts: EngineFacts


class TensorrtLlmEngine(Engine):
    """One LLM of the library, whose executor schedules, batches and runs it; this side asks and reads."""

    def __init__(self, library: Library, arguments: Json) -> None:
        self._library = library
        self._arguments = arguments
        self._live: dict[str, TrtllmSequence] = {}
        self._pumps: set[asyncio.Task[None]] = set()
        self._telling = asyncio.Lock()
        self._loaded: _Loaded | None = None
        self._death: str | None = "The engine has not been started."
        self._closed = False

    # --- life ---

    async def start(self) -> EngineFacts:
        facts = await in_background("tensorrt_llm-load", self._load)
        if self._closed:
            raise EngineError("The engine was closed while it was loading.")
        self._death = None
        _log.info("engine.loaded", version=self._library.version, extensions=sorted(facts.extensions))
        return facts

    def check(self) -> None:
        if self._death is None and self._loaded is not None and not self._healthy(self._loaded.llm):
            self._die("The executor of TensorRT-LLM is not healthy.")
        if self._death is not None:
            raise EngineDead(self._death)

    async def close(self) -> None:
        self._closed = True
        self._die("The engine is closed.")
        for pump in self._pumps:
            pump.cancel()
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await in_background("tensorrt_llm-shutdown", loaded.llm.shutdown)
            except TimeoutError:
                _log.error("engine.close_timed_out", seconds=CLOSE_SECONDS)

    def _healthy(self, llm: Foreign) -> bool:
        # Not a documented name, but the one that trtllm-serve's own /health asks.
        check = getattr(llm, "_check_health", None)
        return check is None or bool(check())

    def _die(self, reason: str) -> None:
        """From here on nothing can be asked, and what runs is told."""
        self._death = reason
        for sequence in list(self._live.values()):
            sequence.fail(EngineDead(reason))

    # --- loading: on a thread ---

    def _load(self) -> EngineFacts:
        llm = self._library.build(self._arguments)
        try:
            config = getattr(llm, "_hf_model_config", None)
            vocabulary = Vocabulary(llm.tokenizer, getattr(config, "vocab_size", None))
            # Kept before anybody hears of it: whoever closes now, or has closed meanwhile, must find it.
            self._loaded = loaded = _Loaded(llm, vocabulary, self._facts(llm, vocabulary, config))
            if self._closed:
                raise EngineError("The engine was closed while it was loading.")
            return loaded.facts
        except BaseException:
            llm.shutdown()
            raise

    def _facts(self, llm: Foreign, vocabulary: Vocabulary, config: Foreign) -> EngineFacts:
        hands_over = self._hands_over()
        return EngineFacts(
            engine=NAME,
            model=Path(str(self._arguments["model"])).name,
            context_length=self._context_length(llm, config),
            vocabulary_size=vocabulary.size,
            max_batch_size=llm.args.max_batch_size or DEFAULT_BATCH_SIZE,
            capabilities=_CAPABILITIES
            | (_GUIDED if self._arguments.get("guided_decoding_backend") else frozenset())
            | (frozenset({Capability.HANDOFF}) if hands_over else frozenset()),
            chat_template=vocabulary.chat_template,
            bos=vocabulary.bos,
            eos=vocabulary.eos,
            extensions=extensions_of(self._library),
            # A version without the property has one order only, and nothing to publish.
            native_handoff=dict(getattr(llm, "disaggregated_params", None) or {}),
        )

    def _hands_over(self) -> bool:
        return self._library.generate_async.takes("disaggregated_params") and bool(
            self._arguments.get("cache_transceiver_config")
        )

    def _context_length(self, llm: Foreign, config: Foreign) -> int:
        """Tokens of a sequence: as configured, else what the model was made for."""
        length = llm.args.max_seq_len or getattr(config, "max_position_embeddings", None)
        if not isinstance(length, int) or length < 2:
            raise EngineError(
                "Neither TensorRT-LLM nor the model says how long a sequence may be: give --context-length."
            )
        return length

    # --- requests ---

    async def generate(self, request: SequenceRequest) -> AsyncGenerator[SequenceOutput, None]:
        loaded = self._ready()
        sequence = self._submit(request, loaded)
        try:
            while (output := await sequence.next()) is not None:
                yield output
                if output.finish_reason is not None:
                    return
        except EngineDead as error:
            self._die(str(error))
            raise
        finally:
            sequence.stop()
            if self._live.get(request.request_id) is sequence:
                del self._live[request.request_id]

    def abort(self, request_id: str) -> None:
        sequence = self._live.get(request_id)
        if sequence is not None:
            sequence.stop()

    def _submit(self, request: SequenceRequest, loaded: _Loaded) -> TrtllmSequence:
        if not loaded.vocabulary.holds(request.prompt):
            raise EngineRefused("The prompt has token ids that this model does not have.", "prompt")
        result = self._asked(request, loaded)
        reading = Reading(request, result, self._library, loaded.vocabulary)
        sequence = TrtllmSequence(request, result, reading, self._library)
        self._live[request.request_id] = sequence
        pump = asyncio.create_task(sequence.pump(), name=f"tensorrt_llm-{request.request_id}")
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return sequence

    def _asked(self, request: SequenceRequest, loaded: _Loaded) -> Foreign:
        """The library's growing output. What it refuses at once is refused here."""
        arguments = request_arguments(request, self._library)
        params = library_params(request, self._library)
        if params is not None:
            if Capability.HANDOFF not in loaded.facts.capabilities:
                message = "This worker has no cache transceiver, so it hands nothing over."
                raise EngineRefused(message, "disaggregated_params")
            arguments["disaggregated_params"] = params
        try:
            return self._library.generate_async(
                loaded.llm,
                inputs=request.prompt,
                sampling_params=sampling_params(request, self._library, loaded.vocabulary.size),
                streaming=True,
                **arguments,
            )
        except self._library.fatal as error:
            raise EngineDead("The executor of TensorRT-LLM has failed.") from error
        except (TypeError, ValueError, RuntimeError) as error:
            # A RuntimeError is either of this request (one version's), or says that the library is shutting down.
            self.check()
            _log.warning("engine.refused", sequence=request.request_id, reason=repr(error))
            raise EngineRefused("TensorRT-LLM cannot do what this request asks.") from error

    def tokenize(self, text: str, *, special: bool, add_special: bool) -> list[int]:
        return self._read().vocabulary.tokenize(text, special=special, add_special=add_special)

    def token_bytes(self, token: int) -> bytes:
        return self._read().vocabulary.spelled(token)

    def _ready(self) -> _Loaded:
        if self._death is not None:
            raise EngineDead(self._death)
        return self._read()

    def _read(self) -> _Loaded:
        """The model as it was loaded: its tokenizer works without an executor."""
        if self._loaded is None:
            raise EngineDead(self._death or "The engine is closed.")
        return self._loaded

    # --- what it tells of itself ---

    async def cache_events(self) -> list[Any]:
        config = self._arguments.get("kv_cache_config") or {}
        if not config.get("event_buffer_max_size"):
            message = "KV-cache events need kv_cache_config.event_buffer_max_size above 0 (extra_llm_api_options)."
            raise EngineRefused(message)
        async with self._telling:
            return await drained(self._ready().llm.get_kv_cache_events_async(timeout=TELL_SECONDS), MAX_TOLD)

    async def iteration_stats(self) -> list[Any]:
        async with self._telling:
            return await drained(self._ready().llm.get_stats_async(timeout=TELL_SECONDS), MAX_TOLD)
