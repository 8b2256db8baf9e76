"""The request as pydantic models: what an orchestrator of that history validates and dumps."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: str
    text: str | None = None


class Function(BaseModel):
    name: str
    arguments: str = ""


class ToolCall(BaseModel):
    id: str | None = None
    type: str = "function"
    function: Function


class Message(BaseModel):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(BaseModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    type: str
    function: FunctionDefinition


class HandOff(BaseModel):
    request_type: str
    first_gen_tokens: list[int] | None = None
    ctx_request_id: int | None = None
    disagg_request_id: int | None = None
    encoded_opaque_state: str | None = None
    schedule_style: int | None = None


class ChatRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str
    messages: list[Message]
    tools: list[Tool] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool = False
    stop: str | list[str] | None = None
    seed: int | None = None
    disaggregated_params: HandOff | None = None
    prompt_token_ids: list[int] | None = None
    prompt_token_ids_b64: str | None = None


class Choice(BaseModel):
    index: int
    message: Message
    finish_reason: str | None = None
    disaggregated_params: HandOff | None = None


class ChatResponse(BaseModel):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: dict[str, Any] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_token_ids_b64: str | None = None
