"""The requests a stock worker takes: pydantic models that forbid what they do not know, as its own do.

Null is accepted where the default is null and for the fields OpenAI declares nullable.
"""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator, model_validator


class Strict(BaseModel):
    """A map in which unknown keys are an error."""

    model_config = ConfigDict(extra="forbid")


class StreamOptions(Strict):
    include_usage: bool | None = True
    continuous_usage_stats: bool | None = False


class PromptTokensDetails(Strict):
    cached_tokens: int = 0


class UsageInfo(Strict):
    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptTokensDetails | None = None


class DisaggregatedParams(Strict):
    """The hand-off. `conversation_id` is not among its fields any more, so sending it is refused."""

    request_type: str
    first_gen_tokens: list[int] | None = None
    first_gen_log_probs: list[Any] | None = None
    first_gen_logits: list[Any] | None = None
    ctx_request_id: int | None = None
    encoded_opaque_state: str | None = None
    draft_tokens: list[int] | None = None
    disagg_request_id: int | None = None
    ctx_dp_rank: int | None = None
    ctx_info_endpoint: str | None = None
    schedule_style: Annotated[int, Field(strict=True, ge=0, le=1)] | None = None
    ctx_usage: UsageInfo | None = None
    return_prompt_token_ids_b64: bool = False
    resolved_thinking: bool | None = None

    @field_validator("request_type")
    @classmethod
    def _known_type(cls, value: str) -> str:
        if value.lower() not in {"context_only", "generation_only", "context_and_generation"}:
            raise ValueError(f"unknown request_type {value}")
        return value.lower()


class ResponseFormat(Strict):
    type: Literal["text", "json", "json_schema", "json_object", "regex", "ebnf", "structural_tag"]
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    json_schema: dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    format: dict[str, Any] | None = None


class ConversationParams(Strict):
    conversation_id: str | None = None


class Generation(Strict):
    """The fields both endpoints share."""

    model: str
    frequency_penalty: float | None = 0.0
    presence_penalty: float | None = 0.0
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None = None
    n: int | None = 1
    best_of: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = []
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    use_beam_search: bool = False
    top_k: int = 0
    top_p_min: float = 0.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    stop_token_ids: list[int] | None = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    thinking_token_budget: int | None = None
    prompt_ignore_length: int | None = 0
    lora_request: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    disaggregated_params: DisaggregatedParams | None = None
    conversation_params: ConversationParams | None = None
    priority: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> "Generation":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options can only be set if stream is true")
        return self

    def usage_wanted(self) -> bool:
        """Whether the stream ends with a usage chunk: yes by default once there are stream options."""
        return bool(self.stream_options and self.stream_options.include_usage is not False)

    def usage_wanted_always(self) -> bool:
        """Whether every chunk carries usage."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def limit(self) -> int | None:
        """The most tokens the client wants."""
        raise NotImplementedError


class CompletionRequest(Generation):
    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool | None = False
    logprobs: int | None = None
    max_tokens: int | None = None
    add_special_tokens: bool = True
    return_context_logits: bool = False
    detokenize: bool = True

    def limit(self) -> int | None:
        return self.max_tokens

    def prompts(self) -> list[str | list[int]]:
        """The prompts as a list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [item for item in self.prompt if isinstance(item, int)]
        return [ids] if ids else [item for item in self.prompt if not isinstance(item, int)]


class Function(Strict):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"] = "function"
    function: Function


class NamedFunction(Strict):
    name: str


class NamedToolChoice(Strict):
    type: Literal["function"] = "function"
    function: NamedFunction


class Thinking(Strict):
    type: Literal["enabled", "disabled"]
    keep: Literal["all"] | None = None
    effort: Literal["low", "high", "max"] | None = None


class ChatRequest(Generation):
    messages: list[dict[str, Any]]
    prompt_token_ids: list[int] | None = None
    prompt_token_ids_b64: str | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_completion_tokens: int | None = Field(
        default=None, validation_alias=AliasChoices("max_completion_tokens", "max_tokens")
    )
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = "none"
    reasoning_effort: Literal["low", "medium", "high", "max", "none"] | None = "low"
    thinking: Thinking | None = None
    echo: bool = False
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    agent_hierarchy: Any = None
    mm_processor_kwargs: dict[str, Any] | None = None

    def limit(self) -> int | None:
        return self.max_completion_tokens

    @field_validator("messages")
    @classmethod
    def _roles(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for message in messages:
            if not isinstance(message.get("role"), str):
                raise ValueError("a message needs a role")
            if "tools" in message and message["role"] != "system":
                raise ValueError("tools are allowed in system messages only")
        return messages

    @model_validator(mode="after")
    def _consistent(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs requires logprobs")
        if not self.tools and self.tool_choice not in (None, "none", "auto"):
            raise ValueError("tool_choice needs tools")
        return self

    def forced_tool(self) -> Function | None:
        """The function the model must call, if any."""
        if isinstance(self.tool_choice, NamedToolChoice):
            name = self.tool_choice.function.name
            return next((tool.function for tool in self.tools or [] if tool.function.name == name), None)
        return self.tools[0].function if self.tool_choice == "required" and self.tools else None
