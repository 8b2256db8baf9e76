"""What the OpenAPI documents show: one request and one reply of each kind, made of the Structs, so they cannot lie."""

from typing import Any, Final

from msgspec import Struct, json

from schemas.abort import AbortRequest
from schemas.cluster import ClusterInfo, CurrentWorkers, MinimalInstances, Registration, ServerLists
from schemas.disagg import CONTEXT_ONLY, DisaggregatedParams
from schemas.openai.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatDelta,
    ChatMessage,
)
from schemas.openai.completions import Completion, CompletionChoice, CompletionRequest
from schemas.openai.errors import invalid
from schemas.openai.models import Model, ModelList
from schemas.openai.usage import usage_of
from schemas.server_info import PackrelayInfo, ServerInfo

_CREATED: Final = 1785542400
_MODEL: Final = "SmolLM2-135M-Instruct"
_SERVED: Final = Model(id=_MODEL, created=_CREATED, max_model_len=8192)

_EXAMPLES: Final[tuple[Struct, ...]] = (
    ChatCompletionRequest(
        model=_MODEL,
        messages=[ChatMessage(role="user", content="Name a colour.")],
        max_completion_tokens=16,
        temperature=0.7,
    ),
    ChatCompletion(
        id="chatcmpl-1f0c",
        created=_CREATED,
        model=_MODEL,
        choices=[ChatChoice(message=AssistantMessage(content="Blue."), finish_reason="stop")],
        usage=usage_of(12, 3),
    ),
    ChatCompletionChunk(
        id="chatcmpl-1f0c",
        created=_CREATED,
        model=_MODEL,
        choices=[ChatChunkChoice(delta=ChatDelta(role="assistant", content="Blue"))],
    ),
    CompletionRequest(model=_MODEL, prompt="Once upon a time", max_tokens=16),
    Completion(
        id="cmpl-1f0c",
        created=_CREATED,
        model=_MODEL,
        choices=[CompletionChoice(text=" there was", finish_reason="length")],
        usage=usage_of(4, 2),
    ),
    invalid("Invalid value for 'temperature': Expected `float` <= 2.0.", "temperature").body(),
    _SERVED,
    ModelList(data=[_SERVED]),
    AbortRequest(request_id="1f0c"),
    ClusterInfo(
        is_ready=False,
        server_lists=ServerLists(context=["10.0.0.1:8001"], generation=[]),
        current_workers=CurrentWorkers(
            context_servers=[
                Registration(worker_id="CONTEXT-10.0.0.1:8001-1785542400000-7-042", host="10.0.0.1", port=8001, role=0)
            ],
            generation_servers=[],
        ),
        minimal_instances=MinimalInstances(context_servers=1, generation_servers=1),
    ),
    ServerInfo(
        disaggregated_params={"ctx_info_endpoint": ["http://127.0.0.1:8001"]},
        max_batch_size=4,
        packrelay=PackrelayInfo(
            frames=1, deferred=True, grpc_port=9001, model=_MODEL, engine="llama_cpp", version="0.1.0", role="context"
        ),
    ),
)

_BY_NAME: Final = {type(made).__name__: made for made in _EXAMPLES}


def example(name: str) -> Any:
    """The example of the schema of this name, as plain values. Any: JSON."""
    return json.decode(json.encode(_BY_NAME[name]))


def context_leg() -> Any:
    """A chat request as a context worker gets it."""
    leg = DisaggregatedParams(request_type=CONTEXT_ONLY, disagg_request_id=4611686018427387904, schedule_style=0)
    return example("ChatCompletionRequest") | {"disaggregated_params": json.decode(json.encode(leg)), "stream": False}
