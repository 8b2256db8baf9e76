"""A stand-in of the stock orchestrator: it drives context and generation workers as trtllm-serve's own does.

It knows the wire from its documentation alone and imports nothing of ours. Bodies are msgpack with the tag; replies are JSON, whole
ones read by models that forbid what they do not know; streams are relayed as they come.
"""

import asyncio
import json
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

import httpx2
import msgpack  # type: ignore[import-untyped]  # the package carries no types
from pydantic import BaseModel, ConfigDict

from tests.stock.disagg import AUTH_HEADER, signature
from tests.stock.protocol import DisaggregatedParams, UsageInfo

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
DONE = b"data: [DONE]\n\n"
TAG = {"content-type": "application/json", "x-trtllm-msgpack": "1"}
PENDING = frozenset({"length", "not_finished"})
LOWEST_ID, HIGHEST_ID = 2**40, 2**63 - 1

Json = dict[str, Any]


class Strict(BaseModel):
    """A reply in which unknown keys are an error."""

    model_config = ConfigDict(extra="forbid")


class Function(Strict):
    name: str
    arguments: str


class ToolCall(Strict):
    id: str
    type: Literal["function"]
    function: Function


class Message(Strict):
    role: str
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None


class TokenLogprob(Strict):
    token: str
    logprob: float
    bytes: list[int] | None = None


class ChosenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob] = []


class ChatLogprobs(Strict):
    content: list[ChosenLogprob] | None = None


class ChatChoice(Strict):
    index: int
    message: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    mm_embedding_handle: Json | None = None
    disaggregated_params: DisaggregatedParams | None = None
    avg_decoded_tokens_per_iter: float | None = None


class ChatReply(Strict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageInfo
    prompt_token_ids: list[int] | None = None
    prompt_token_ids_b64: str | None = None


class CompletionLogprobs(Strict):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Strict):
    index: int
    text: str
    token_ids: list[int] | None = None
    logprobs: CompletionLogprobs | None = None
    context_logits: list[Any] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    disaggregated_params: DisaggregatedParams | None = None
    avg_decoded_tokens_per_iter: float | None = None


class CompletionReply(Strict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageInfo
    prompt_token_ids: list[int] | None = None


class WorkerError(Exception):
    """A worker did not answer with 200."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body[:2048]!r}")
        self.status = status
        self.body = body


@dataclass
class Answer:
    """What a client would get, and how it came about: what each worker was sent and what the context worker said."""

    body: Json | None = None
    stream: bytes = b""
    context: Json = field(default_factory=dict)
    sent: list[Json] = field(default_factory=list)

    def records(self) -> list[Json]:
        """The records of a stream, which must end with its terminal."""
        *records, terminal, rest = self.stream.split(b"\n\n")
        assert (terminal, rest) == (b"data: [DONE]", b""), self.stream[-200:]
        return [json.loads(record.removeprefix(b"data: ")) for record in records]


@dataclass
class StockOrchestrator:
    """Drives one pair of workers. `key` is `internal_request_auth_key`; `ask_b64` asks for prompt ids in base64."""

    http: httpx2.AsyncClient
    context_url: str
    generation_url: str
    key: str | None = None
    ask_b64: bool = False
    _numbers: "count[int]" = field(default_factory=lambda: count(7))

    def fresh_id(self) -> int:
        """An id of a disaggregated request: far above what doubles hold exactly."""
        return LOWEST_ID + (next(self._numbers) * 0x9E37_79B9_7F4A_7C15) % (HIGHEST_ID - LOWEST_ID)

    async def serve(self, path: str, request: Json) -> Answer:
        """Context first: one leg after the other."""
        request = self._as_dumped(path, request)
        answer = Answer()
        context = request | {"disaggregated_params": self._context_params(0), "stream": False, "stream_options": None}
        answer.sent.append(context)
        answer.context = await self._whole(self.context_url, path, context)
        choice = answer.context["choices"][0]
        if choice["finish_reason"] not in PENDING:
            return self._finished(request, answer)
        generation = self._generation(path, request, answer.context)
        answer.sent.append(generation)
        await self._answered(path, generation, answer)
        return answer

    async def serve_generation_first(self, path: str, request: Json) -> Answer:
        """Both legs at once; the generation leg is sent first, because the context worker waits for it."""
        request = self._as_dumped(path, request)
        info = (await self.http.get(f"{self.context_url}/server_info")).json()["disaggregated_params"]
        keys = {name: value[0] if isinstance(value, list) else value for name, value in info.items()}
        context = self._context_params(1)
        ids = {"ctx_request_id": context["disagg_request_id"], "disagg_request_id": context["disagg_request_id"]}
        generation = request | {
            "disaggregated_params": {"request_type": "generation_only", "schedule_style": 1, **ids, **keys}
        }
        answer = Answer(
            sent=[generation, request | {"disaggregated_params": context, "stream": False, "stream_options": None}]
        )
        async with asyncio.TaskGroup() as legs:
            legs.create_task(self._answered(path, generation, answer))
            await asyncio.sleep(0)
            waited = legs.create_task(self._whole(self.context_url, path, answer.sent[1]))
        answer.context = waited.result()
        return answer

    # --- what is sent ---

    def _as_dumped(self, path: str, request: Json) -> Json:
        """The request as the orchestrator's own model writes it: what was not set is left out, the limit has its newer name."""
        if path == CHAT and "max_tokens" in request:
            return {("max_completion_tokens" if key == "max_tokens" else key): value for key, value in request.items()}
        prompt = request.get("prompt")
        return request | {"prompt": prompt[0]} if isinstance(prompt, list) and isinstance(prompt[0], list) else request

    def _context_params(self, style: int) -> Json:
        return {
            "request_type": "context_only",
            "disagg_request_id": self.fresh_id(),
            "schedule_style": style,
            "return_prompt_token_ids_b64": self.ask_b64,
        }

    def _generation(self, path: str, request: Json, context: Json) -> Json:
        """The client's request with the hand-off echoed, nulls included, and the prompt as ids."""
        params = context["choices"][0]["disaggregated_params"]
        echoed = params | {"request_type": "generation_only", "schedule_style": 0, "ctx_usage": context["usage"]}
        if path == COMPLETIONS:
            return request | {"disaggregated_params": echoed, "prompt": context["prompt_token_ids"]}
        name = "prompt_token_ids" if context.get("prompt_token_ids_b64") is None else "prompt_token_ids_b64"
        return request | {"disaggregated_params": echoed, name: context[name]}

    def _headers(self, body: Json) -> dict[str, str]:
        params = body["disaggregated_params"]
        state, endpoint = params.get("encoded_opaque_state"), params.get("ctx_info_endpoint")
        if self.key is None or params["request_type"] != "generation_only" or (state is None and endpoint is None):
            return TAG
        return TAG | {AUTH_HEADER: signature(self.key, state, endpoint)}

    # --- what comes back ---

    async def _answered(self, path: str, generation: Json, answer: Answer) -> None:
        if generation.get("stream"):
            answer.stream = await self._post(self.generation_url, path, generation, "text/event-stream")
        else:
            answer.body = await self._whole(self.generation_url, path, generation)

    async def _whole(self, url: str, path: str, body: Json) -> Json:
        """A whole reply. On the context leg its choices must carry the hand-off, with ids while it is pending."""
        data = await self._post(url, path, body, "application/json")
        (ChatReply if path == CHAT else CompletionReply).model_validate_json(data)
        reply: Json = json.loads(data)
        if body["disaggregated_params"]["request_type"] == "context_only":
            self._verify(reply)
        return reply

    def _verify(self, reply: Json) -> None:
        for choice in reply["choices"]:
            params = choice["disaggregated_params"]
            ids = (params["ctx_request_id"], params["disagg_request_id"])
            if choice["finish_reason"] in PENDING and None in ids:
                raise ValueError("a pending choice without ids")

    async def _post(self, url: str, path: str, body: Json, content_type: str) -> bytes:
        reply = await self.http.post(url + path, content=msgpack.packb(body), headers=self._headers(body), timeout=10)
        if reply.status_code != 200:
            raise WorkerError(reply.status_code, reply.content)
        if not reply.headers["content-type"].startswith(content_type):
            raise ValueError(f"expected {content_type}, got {reply.headers['content-type']}")
        return reply.content

    def _finished(self, request: Json, answer: Answer) -> Answer:
        """The context leg's reply is the answer; a client that streams is told the end and nothing else."""
        choice = answer.context["choices"][0]
        answer.body = answer.context | {"choices": [choice | {"disaggregated_params": None}]}
        answer.stream = DONE if request.get("stream") else b""
        return answer
