"""The request fields that chat completions and completions share.

Absent, null and a value are three states: a field that was not sent is UNSET and is never sent on; null means the default only
where the value is read. Source: OpenAI `CreateChatCompletionRequest`, `CreateCompletionRequest`; TensorRT-LLM's extensions from
trtllm-wire.md 9.1.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from schemas.disagg import DisaggregatedParams

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

Temperature = Annotated[float, Meta(ge=0, le=2)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Choices = Annotated[int, Meta(ge=1, le=128)]
Seed = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopText = Annotated[str, Meta(max_length=4096)]
StopList = Annotated[list[StopText], Meta(max_length=16)]


class StreamOptions(Struct, kw_only=True):
    """How a stream reports usage: in one chunk before the end, and (continuous) also in every chunk. Both default to false."""

    include_usage: bool | None | UnsetType = UNSET
    continuous_usage_stats: bool | None | UnsetType = UNSET
    include_obfuscation: bool | None | UnsetType = UNSET


class JsonSchemaFormat(Struct, kw_only=True):
    """A named JSON Schema the answer must fit. `strict` is accepted; packrelay always enforces the schema."""

    name: str | None | UnsetType = UNSET
    description: str | None | UnsetType = UNSET
    schema: dict[str, Any] | bool | None | UnsetType = UNSET
    strict: bool | None | UnsetType = UNSET


class ResponseFormat(Struct, kw_only=True):
    """The form the answer must have.

    `type` is text, json_object or json_schema (OpenAI), or json, regex, ebnf or structural_tag (TensorRT-LLM, with the field
    `schema`, `regex`, `ebnf` or `format` beside it). What an engine cannot enforce is refused, never dropped.
    """

    type: Literal["text", "json_object", "json_schema", "json", "regex", "ebnf", "structural_tag"]
    json_schema: JsonSchemaFormat | None | UnsetType = UNSET
    schema: dict[str, Any] | None | UnsetType = UNSET
    regex: str | None | UnsetType = UNSET
    ebnf: str | None | UnsetType = UNSET
    format: dict[str, Any] | None | UnsetType = UNSET


class ConversationParams(Struct, kw_only=True):
    """Which conversation a request belongs to, for routers that keep one on one worker."""

    conversation_id: str | None | UnsetType = UNSET


class GenerationOptions(Struct, kw_only=True):
    """Sampling, stopping and streaming, the same on both endpoints.

    temperature (0 to 2), top_p (0 to 1) and min_p default to 1, 1 and 0; penalties (-2 to 2) to 0; n (1 to 128) to 1; `stop` is up
    to 16 strings, an empty string is ignored; `logit_bias` maps token ids to -100 .. 100; `seed` is int64. Of `best_of` (0 to 20, 0
    as if absent) sequences the n most likely are the answer; chat has it from TensorRT-LLM.
    """

    model: Annotated[str, Meta(min_length=1)]
    frequency_penalty: Penalty | None | UnsetType = UNSET
    presence_penalty: Penalty | None | UnsetType = UNSET
    logit_bias: dict[str, Bias] | None | UnsetType = UNSET
    n: Choices | None | UnsetType = UNSET
    best_of: Annotated[int, Meta(ge=0, le=20)] | None | UnsetType = UNSET
    seed: Seed | None | UnsetType = UNSET
    stop: StopText | StopList | None | UnsetType = UNSET
    stream: bool | None | UnsetType = UNSET
    stream_options: StreamOptions | None | UnsetType = UNSET
    temperature: Temperature | None | UnsetType = UNSET
    top_p: Probability | None | UnsetType = UNSET
    user: str | None | UnsetType = UNSET
    max_tokens: Count | None | UnsetType = UNSET

    # TensorRT-LLM
    use_beam_search: bool | None | UnsetType = UNSET
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None | UnsetType = UNSET
    top_p_min: Probability | None | UnsetType = UNSET
    min_p: Probability | None | UnsetType = UNSET
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None | UnsetType = UNSET
    length_penalty: Annotated[float, Meta(ge=-1e6, le=1e6)] | None | UnsetType = UNSET
    early_stopping: bool | str | None | UnsetType = UNSET
    stop_token_ids: list[TokenId] | None | UnsetType = UNSET
    include_stop_str_in_output: bool | None | UnsetType = UNSET
    ignore_eos: bool | None | UnsetType = UNSET
    min_tokens: Count | None | UnsetType = UNSET
    skip_special_tokens: bool | None | UnsetType = UNSET
    spaces_between_special_tokens: bool | None | UnsetType = UNSET
    truncate_prompt_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None | UnsetType = UNSET
    thinking_token_budget: Count | None | UnsetType = UNSET
    prompt_ignore_length: Count | None | UnsetType = UNSET
    lora_request: dict[str, Any] | None | UnsetType = UNSET
    response_format: ResponseFormat | None | UnsetType = UNSET
    disaggregated_params: DisaggregatedParams | None | UnsetType = UNSET
    conversation_params: ConversationParams | None | UnsetType = UNSET
    priority: Probability | None | UnsetType = UNSET
    add_special_tokens: bool | None | UnsetType = UNSET
