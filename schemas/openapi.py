"""The OpenAPI 3.1 document of the gateway, generated from the Structs: what it says of a field is what the decoder checks.

The request schemas leave out the fields that are for the inner hop; the gateway refuses those from outside.
"""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, Final

from msgspec import json
from msgspec.json import schema_components

from schemas.cluster import ClusterInfo
from schemas.openai.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest
from schemas.openai.completions import Completion, CompletionRequest
from schemas.openai.errors import ErrorBody
from schemas.openai.models import Model, ModelList
from schemas.openapi_examples import example

Schema = dict[str, Any]
"""A piece of the document: JSON, whose shape is OpenAPI's business."""

_TYPES: Final = (
    ChatCompletionRequest,
    ChatCompletion,
    ChatCompletionChunk,
    CompletionRequest,
    Completion,
    ClusterInfo,
    ErrorBody,
    Model,
    ModelList,
)
_INNER_FIELDS: Final = ("disaggregated_params", "prompt_token_ids", "prompt_token_ids_b64")

_TOKEN_IDS: Final[Schema] = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
PROMPT: Final[Schema] = {
    "description": "Text, a list of texts, token ids, or a list of lists of token ids.",
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {**_TOKEN_IDS, "minItems": 1},
        {"type": "array", "items": _TOKEN_IDS, "minItems": 1},
        {"type": "null"},
    ],
}
STATUS_TEXTS: Final = {
    400: "The request itself is wrong; `param` names the field.",
    401: "No API key, or not a valid one.",
    404: "No such model.",
    408: "The body did not arrive in time.",
    411: "The request neither says how long its body is, nor sends it in chunks.",
    413: "The body is too large.",
    415: "The body is not JSON, or in an unknown encoding.",
    429: "Too many requests at once; see Retry-After.",
    500: "A fault of the server.",
    502: "The worker failed.",
    503: "No worker is ready, or the server is shutting down; see Retry-After.",
    504: "The answer took too long.",
}


def document(version: str) -> Schema:
    """The whole document. `version` is the product's."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "packrelay",
            "version": version,
            "description": "An OpenAI-compatible API for language models served by separate prefill and decode workers.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": _paths(),
        "components": {"schemas": _schemas(), "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _schemas() -> Schema:
    _, made = schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    schemas: Schema = deepcopy(made)
    schemas["CompletionRequest"]["properties"]["prompt"] = PROMPT
    for name in ("ChatCompletionRequest", "CompletionRequest"):
        for field in _INNER_FIELDS:
            schemas[name]["properties"].pop(field, None)
    schemas.pop("DisaggregatedParams", None)
    for name in ("ChatChoice", "CompletionChoice"):
        schemas[name]["properties"].pop("disaggregated_params")
    for name in ("ChatCompletion", "Completion"):
        for field in _INNER_FIELDS:
            schemas[name]["properties"].pop(field, None)
    return schemas


def _paths() -> Schema:
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "/v1/chat/completions": {
            "post": _generation(
                "createChatCompletion", "ChatCompletionRequest", "ChatCompletion", "ChatCompletionChunk"
            )
        },
        "/v1/completions": {"post": _generation("createCompletion", "CompletionRequest", "Completion", "Completion")},
        "/v1/models": {"get": _plain("listModels", "The models served here.", "ModelList", [401])},
        "/v1/models/{model}": {
            "get": _plain("retrieveModel", "One of them.", "Model", [401, 404]) | {"parameters": [model]},
        },
        "/health": {"get": _open("health", "The same as /health/ready.", "application/json", [503])},
        "/health/live": {"get": _open("live", "The process answers.", "application/json", [])},
        "/health/ready": {"get": _open("ready", "Requests would find workers.", "application/json", [503])},
        "/cluster_info": {
            "get": _plain("clusterInfo", "The workers, and whether they are enough.", "ClusterInfo", [401])
        },
        "/version": {"get": _open("version", "The version of the server.", "application/json", [])},
        "/metrics": {"get": _open("metrics", "Counters, for Prometheus.", "text/plain", [])},
        "/openapi.json": {"get": _open("openapi", "This document.", "application/json", [])},
        "/docs": {"get": _open("docs", "This document, for people.", "text/html", [])},
    }


def _generation(operation: str, request: str, reply: str, chunk: str) -> Schema:
    """An endpoint that answers whole, or as a stream of server-sent events whose data are `chunk`s and then `[DONE]`."""
    content = content_of("application/json", reply) | content_of("text/event-stream", chunk)
    return {
        "operationId": operation,
        "security": [{"key": []}, {}],
        "requestBody": {"required": True, "content": content_of("application/json", request)},
        "responses": {"200": {"description": "The answer.", "content": content}} | error_replies(list(STATUS_TEXTS)),
    }


def _plain(operation: str, description: str, reply: str, errors: list[int]) -> Schema:
    ok = {"description": description, "content": content_of("application/json", reply)}
    return {
        "operationId": operation,
        "security": [{"key": []}, {}],
        "responses": {"200": ok} | error_replies(errors),
    }


def _open(operation: str, description: str, media_type: str, errors: list[int]) -> Schema:
    """An endpoint without a key."""
    ok = {"description": description, "content": {media_type: {}}}
    return {"operationId": operation, "security": [], "responses": {"200": ok} | error_replies(errors)}


def error_replies(statuses: Iterable[int]) -> Schema:
    """The replies of these statuses: all of them are the OpenAI error object."""
    content = content_of("application/json", "ErrorBody")
    return {str(status): {"description": STATUS_TEXTS[status], "content": content} for status in statuses}


def content_of(kind: str, name: str) -> Schema:
    """A body of a media type: its schema's name, and the example of it."""
    return {kind: {"schema": reference(name), "example": example(name)}}


def reference(name: str) -> Schema:
    """A schema of the document by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def as_json(made: Schema) -> bytes:
    """A document as it is served and as it stands in schemas/generated/openapi: the same bytes."""
    return json.format(json.encode(made), indent=2) + b"\n"
