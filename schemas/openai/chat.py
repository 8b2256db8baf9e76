"""Chat completions: the request in its three readings, the reply, and the chunks of a stream.

Source: OpenAI `CreateChatCompletionRequest` and its replies; TensorRT-LLM's extensions from trtllm-wire.md 9.3 and 9.4.
"""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from schemas.disagg import DisaggregatedParams
from schemas.openai.logprobs import ChatLogprobs
from schemas.openai.options import GenerationOptions, TokenId
from schemas.openai.usage import Usage

# --- messages and tools: typed where they are read (at the worker), never on the way ---


class ContentPart(Struct, kw_only=True):
    """A piece of a message. Types text and refusal carry text; a worker refuses by name the types its model cannot see."""

    type: str
    text: str | None | UnsetType = UNSET
    refusal: str | None | UnsetType = UNSET


class FunctionCall(Struct, kw_only=True):
    """A function the model wants called. `arguments` is JSON text as the model wrote it, which may not be valid JSON."""

    name: str
    arguments: str = ""


class ToolCall(Struct, kw_only=True):
    """One tool call of an assistant's message; `id` is what the tool's answer refers to."""

    id: str | None = None
    type: str = "function"
    function: FunctionCall | UnsetType = UNSET


class ChatMessage(Struct, kw_only=True):
    """A message of the conversation: role system, developer, user, assistant, tool, function, or one the template knows.

    An assistant's message with tool calls may have null or no content. `reasoning_content` (or `reasoning`) echoed from an
    earlier answer reaches the template.
    """

    role: Annotated[str, Meta(min_length=1)]
    content: str | list[ContentPart] | None | UnsetType = UNSET
    name: str | None | UnsetType = UNSET
    refusal: str | None | UnsetType = UNSET
    tool_calls: list[ToolCall] | None | UnsetType = UNSET
    tool_call_id: str | None | UnsetType = UNSET
    function_call: FunctionCall | None | UnsetType = UNSET
    reasoning_content: str | None | UnsetType = UNSET
    reasoning: str | None | UnsetType = UNSET


class FunctionDefinition(Struct, kw_only=True):
    """A function the model may call; `parameters` is a JSON Schema, absent for a function without arguments."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None | UnsetType = UNSET
    parameters: dict[str, Any] | None | UnsetType = UNSET
    strict: bool | None | UnsetType = UNSET


class Tool(Struct, kw_only=True):
    """A tool on offer; the only type is `function`."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Struct, kw_only=True):
    """The function a tool choice names."""

    name: str


class NamedToolChoice(Struct, kw_only=True, tag_field="type", tag="function"):
    """Forces one function."""

    function: NamedFunction


class AllowedTool(Struct, kw_only=True):
    """One of the tools that may be called, by its function's name."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Struct, kw_only=True):
    """Which of the request's tools the model may call, and whether it must call one of them (mode `required`)."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1)]


class AllowedToolsChoice(Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    """Narrows the tools on offer. The gateway settles it: workers get the tools that are left, and the mode."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolsChoice


class ChatOptions(GenerationOptions, kw_only=True):
    """Every top-level field of a chat request but `messages` and `tools`.

    `max_completion_tokens` is the name on the inner hop; `max_tokens` is its older name, and loses when both are sent.
    `top_logprobs` (0 to 20) needs `logprobs`. `tool_choice` defaults to auto with tools, to none without.
    """

    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None | UnsetType = UNSET
    logprobs: bool | None | UnsetType = UNSET
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None | UnsetType = UNSET
    tool_choice: ToolChoice | None | UnsetType = UNSET
    parallel_tool_calls: bool | None | UnsetType = UNSET
    reasoning_effort: str | None | UnsetType = UNSET

    # OpenAI fields that cannot change this server's answer
    metadata: dict[str, Any] | None | UnsetType = UNSET
    store: bool | None | UnsetType = UNSET
    service_tier: str | None | UnsetType = UNSET
    safety_identifier: str | None | UnsetType = UNSET
    prompt_cache_key: str | None | UnsetType = UNSET
    prompt_cache_retention: str | None | UnsetType = UNSET
    prompt_cache_options: dict[str, Any] | None | UnsetType = UNSET
    prediction: dict[str, Any] | None | UnsetType = UNSET

    # OpenAI fields that would
    modalities: list[str] | None | UnsetType = UNSET
    audio: dict[str, Any] | None | UnsetType = UNSET
    verbosity: str | None | UnsetType = UNSET
    web_search_options: dict[str, Any] | None | UnsetType = UNSET
    moderation: dict[str, Any] | None | UnsetType = UNSET
    function_call: Any = UNSET
    functions: list[dict[str, Any]] | None | UnsetType = UNSET

    # TensorRT-LLM
    prompt_token_ids: list[TokenId] | None | UnsetType = UNSET
    prompt_token_ids_b64: str | None | UnsetType = UNSET
    thinking: dict[str, Any] | None | UnsetType = UNSET
    echo: bool | None | UnsetType = UNSET
    add_generation_prompt: bool | None | UnsetType = UNSET
    documents: list[dict[str, Any]] | None | UnsetType = UNSET
    chat_template: str | None | UnsetType = UNSET
    chat_template_kwargs: dict[str, Any] | None | UnsetType = UNSET
    media_io_kwargs: dict[str, Any] | None | UnsetType = UNSET
    cache_salt: Annotated[str, Meta(min_length=1)] | None | UnsetType = UNSET
    agent_hierarchy: Any = UNSET
    mm_processor_kwargs: dict[str, Any] | None | UnsetType = UNSET


class ChatCompletionRequest(ChatOptions, kw_only=True):
    """A chat request as a worker reads it, and the public schema: everything typed."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    tools: list[Tool] | None | UnsetType = UNSET


class ChatView(ChatOptions, kw_only=True, forbid_unknown_fields=True):
    """A chat request as the gateway reads it: `messages` and `tools` stay the client's JSON and are never walked here.

    Before it is encoded as a frame the two are replaced (`codec.plain_form`, `codec.deferred_form`): JSON inside msgpack would
    be a corrupt frame.
    """

    messages: Raw
    tools: Raw | UnsetType = UNSET


class TolerantChatView(ChatOptions, kw_only=True):
    """ChatView for a body with top-level fields nobody knows: they are skipped (their names are reported apart)."""

    messages: Raw
    tools: Raw | UnsetType = UNSET


CHAT_VIEWS: Final = (ChatView, TolerantChatView)


class DeferredChatRequest(ChatOptions, kw_only=True):
    """A chat frame in either form: `messages` and `tools` as values (plain), or as `bin` holding the client's JSON (deferred).

    Known to the msgpack decoder only: a JSON decoder would read a string as base64 here.
    """

    messages: list[ChatMessage] | bytes
    tools: list[Tool] | bytes | None | UnsetType = UNSET


# --- replies ---


class AssistantMessage(Struct, kw_only=True):
    """The answer. `content` is null when there are only tool calls. Stock workers write null where there is no reasoning."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: str | None | UnsetType = None
    reasoning_content: str | None | UnsetType = UNSET
    tool_calls: list[ToolCall] | None | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    """One answer of `n`. `stop_reason` says which stop string or token id ended it, null otherwise.

    `disaggregated_params` stands only in the reply of a context leg.
    """

    index: int = 0
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    disaggregated_params: DisaggregatedParams | None | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    """A whole chat reply. `created` is in Unix seconds. `prompt_token_ids` (or its base64 form) only from a context leg."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | UnsetType = UNSET
    prompt_token_ids: list[int] | None | UnsetType = UNSET
    prompt_token_ids_b64: str | None | UnsetType = UNSET


class FunctionCallDelta(Struct, kw_only=True):
    """A piece of a function call: the name comes first and once, the arguments piece by piece."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(Struct, kw_only=True):
    """A piece of the tool call number `index` (0, 1, …) of a choice; `id` and `type` come first and once."""

    index: int = 0
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionCallDelta | UnsetType = UNSET


class ChatDelta(Struct, kw_only=True):
    """What a chunk adds to a choice. `role` stands in the first delta of a choice only."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | None | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    """One choice of a chunk. `finish_reason` is null until the choice's last chunk."""

    index: int = 0
    delta: ChatDelta
    logprobs: ChatLogprobs | None | UnsetType = UNSET
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET


class ChatCompletionChunk(Struct, kw_only=True):
    """One SSE record of a chat stream; id, created and model are the same in all of them."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None | UnsetType = UNSET
