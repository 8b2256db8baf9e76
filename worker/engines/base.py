"""The engine contract: start, generate, abort, close. One call of `generate` is one sequence of tokens.

    EngineError
    ├── EngineRefused   this request cannot be done (the message is for the client)
    ├── HandoffFailed   the prefill state given is not one this engine can go on from
    └── EngineDead      nothing can be done any more; the worker must be replaced

An engine knows tokens and bytes. It knows no HTTP, no events, no chat: n, prompt lists and best_of are several calls, stop strings,
tool calls and UTF-8 are resolved in `worker/output.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct

from schemas.disagg import DisaggregatedParams


class EngineError(Exception):
    """Base of what an engine raises. A bug of the engine may raise anything else: it fails that request alone."""


class EngineRefused(EngineError):
    """The engine cannot do what this request asks; `param` names the request field. A 400, nothing was started."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class HandoffFailed(EngineError):
    """The state from the context leg is lost, truncated, of another model, or leads to another first token."""


class EngineDead(EngineError):
    """Unrecoverable: every request fails from here on, and the worker's health says so."""


class Capability(StrEnum):
    """What an engine may or may not be able to do. The front end refuses by name what is not declared."""

    LOGPROBS = "logprobs"
    PROMPT_LOGPROBS = "prompt_logprobs"
    JSON = "json"
    """Any JSON object, and JSON Schemas."""
    REGEX = "regex"
    GRAMMAR = "grammar"
    LOGIT_BIAS = "logit_bias"
    HANDOFF = "handoff"


class EngineFacts(Struct, frozen=True, kw_only=True):
    """What `start` found: true until `close`.

    `context_length` (tokens) bounds prompt plus output. `chat_template` is Jinja source; `bos` and `eos` are the texts templates
    insert. `extensions` are the request fields beyond OpenAI's that this engine honours where others cannot, by their names in the
    schema.

    `native_handoff` is for engines whose prefill state travels between the engines themselves (TensorRT-LLM: GPU to GPU). Their
    hand-offs are `handoff`, not `state`: the fields of `disaggregated_params` as stock workers write and read them. Its value is
    what `/server_info` publishes for generation legs that start first (Any: keys of the engine's own). None: we move `state`.
    """

    engine: str
    model: str
    context_length: int
    vocabulary_size: int
    max_batch_size: int
    capabilities: frozenset[Capability]
    chat_template: str
    bos: str
    eos: str
    extensions: frozenset[str] = frozenset()
    native_handoff: dict[str, Any] | None = None


class Constraint(Struct, frozen=True, kw_only=True):
    """A form the output is forced into: `text` is a JSON Schema (JSON text), a regular expression, or a GBNF grammar.

    `kind` json_object has no text.
    """

    kind: Literal["json_object", "json_schema", "regex", "grammar"]
    text: str = ""


class Sampling(Struct, frozen=True, kw_only=True):
    """How the next token is chosen, and when to stop: everything resolved, no nulls but where they mean "off".

    `temperature` 0 is greedy. `top_k` 0 is off. `seed` None is the engine's choice. `logprobs` and `prompt_logprobs` are how many
    alternatives to report per token (0 reports the token alone), None reports nothing. `stop_token_ids` end the sequence without
    being part of its text; so does the model's own end token unless `ignore_eos`. `max_tokens` is at least 1.

    The last five differ from their defaults only for engines that name them in `extensions`, but for `priority` (0 to 1, higher
    first), which an engine without priorities leaves alone: it changes no answer. `cache_salt` keeps cached prefixes apart.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: dict[int, float] = {}
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint: Constraint | None = None
    top_p_min: float = 0.0
    prompt_ignore_length: int = 0
    thinking_token_budget: int | None = None
    cache_salt: str | None = None
    priority: float | None = None


class Leg(StrEnum):
    """Which part of a request this worker does."""

    BOTH = "both"
    CONTEXT = "context"
    """Prefill, sample one token, report the state: the last output carries `state`."""
    GENERATION = "generation"
    """Go on from `state`: the first token is sampled again here, so that the sampler's state is what one worker's would be."""


class SequenceRequest(Struct, frozen=True, kw_only=True):
    """One sequence to generate. `prompt` is at least one token id.

    The caller promises: `request_id` is unique among live sequences; len(prompt) < context_length; for the generation leg `state`
    is the bytes another engine of this kind and model reported and `first_tokens` the tokens it sampled.

    For an engine with `native_handoff`, `handoff` is the request's `disaggregated_params` on both legs instead: on the context leg
    the ids and the order the orchestrator wants, on the generation leg all that the context engine said. The first token is then
    replayed by the engine itself.
    """

    request_id: str
    prompt: list[int]
    sampling: Sampling
    leg: Leg = Leg.BOTH
    state: bytes | None = None
    first_tokens: list[int] = []
    handoff: DisaggregatedParams | None = None


class Candidate(Struct, frozen=True):
    """A token that could have been chosen: id, its bytes (perhaps part of a character), natural log probability."""

    id: int
    data: bytes
    logprob: float


class Token(Struct, frozen=True, kw_only=True):
    """A token of the output (or of the prompt, when its logprobs are asked for).

    `data` is its bytes in the text, empty for a token that is not text (the end token). `logprob` is None if not asked for, and for
    the first token of a prompt.
    """

    id: int
    data: bytes
    logprob: float | None = None
    top: list[Candidate] = []


class SequenceOutput(Struct, frozen=True, kw_only=True):
    """What is new since the last output: at least one token, or the finish.

    `finish_reason` is set in the last output: `stop` (the end token or a stop token id, which is then `stop_token`), `length`
    (max_tokens or the context is used up). The token that stopped a sequence is the last of `tokens`, its `data` empty.
    `cached_tokens` and `prompt` (prompt logprobs) stand in the first output; a generation leg whose engine learns of the context
    leg's cached tokens later says so then.
    `state` stands in the last output of a context leg whose finish reason is `length`: all that a generation leg needs. In its
    place engines with `native_handoff` have `handoff`, with the fields they know of set.
    """

    tokens: list[Token] = []
    finish_reason: Literal["stop", "length"] | None = None
    stop_token: int | None = None
    cached_tokens: int = 0
    prompt: list[Token] = []
    state: bytes | None = None
    handoff: DisaggregatedParams | None = None


class Engine(ABC):
    """A model that can be run. Built by its module's `create(model, options)` factory, which does the heavy imports."""

    @abstractmethod
    async def start(self) -> EngineFacts:
        """Load everything. When it returns, `generate` works. Raises EngineError with a sentence that says what to do."""

    @abstractmethod
    def generate(self, request: SequenceRequest) -> AsyncGenerator[SequenceOutput, None]:
        """The sequence, as it comes. The engine merges outputs when the caller is slow: it neither waits nor buffers without bound.

        The caller promises to close the generator (`aclose`); doing so before its end aborts the sequence. Raises EngineRefused
        before the first output, HandoffFailed before the first output of a generation leg, EngineDead at any time. Of an aborted
        sequence it ends without a finish reason.
        """

    @abstractmethod
    def abort(self, request_id: str) -> None:
        """Stop a sequence at the next batch boundary, also during its prefill. Never blocks; unknown ids are fine."""

    @abstractmethod
    async def close(self) -> None:
        """End everything, whatever is running. Works after a failed start and a second time."""

    @abstractmethod
    def tokenize(self, text: str, *, special: bool, add_special: bool) -> list[int]:
        """Token ids of a text. `special`: markers such as `<|im_start|>` are read as tokens; `add_special`: prepend BOS if the
        model has one. Called off the event loop for long texts: thread-safe.
        """

    def fewest_tokens(self, text: str, enough: int) -> int:  # noqa: ARG002 - engines that can tell use them
        """How many tokens `tokenize` would find at least, its markers read as tokens: quickly, for texts that are far too long.

        Never more than it finds; counting may stop at `enough`. 0 from engines that cannot tell. Called off the event loop:
        thread-safe.
        """
        return 0

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The exact bytes of a token, special ones included (their name)."""

    @abstractmethod
    def check(self) -> None:
        """Raises EngineDead when no request can succeed any more. Never blocks."""

    async def cache_events(self) -> list[Any]:
        """What happened in the KV cache since the last call, in the engine's own words (Any); for engines that tell."""
        raise EngineRefused("This engine tells no KV-cache events.")

    async def iteration_stats(self) -> list[Any]:
        """What the engine's iterations since the last call did, in its own words (Any); for engines that tell."""
        raise EngineRefused("This engine tells no iteration statistics.")
