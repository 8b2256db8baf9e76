"""The OpenAPI 3.1 document of a worker: the inner hop over HTTP, for whoever writes a worker or speaks to one.

A body is JSON, or the same map as msgpack under the same content type when it is tagged (docs/wire.md); OpenAPI can only describe
the JSON.
"""

from copy import deepcopy
from typing import Final

from msgspec.json import schema_components

from schemas.abort import AbortRequest
from schemas.codec import (
    DEADLINE_HEADER,
    DISAGG_AUTH_HEADER,
    MSGPACK_HEADER,
    MSGPACK_HEADER_VALUE,
    MSGPACK_TYPE,
    REQUEST_ID_HEADER,
)
from schemas.openai.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest
from schemas.openai.completions import Completion, CompletionRequest
from schemas.openai.errors import ErrorBody
from schemas.openai.models import Model, ModelList
from schemas.openapi import PROMPT, Schema, content_of, error_replies, reference
from schemas.openapi_examples import context_leg, example
from schemas.server_info import ServerInfo

_TYPES: Final = (
    AbortRequest,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    ErrorBody,
    Model,
    ModelList,
    ServerInfo,
)
_GENERATION_ERRORS: Final = (400, 401, 404, 413, 429, 500, 503, 504)


def worker_document(version: str) -> Schema:
    """The whole document. `version` is the product's."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "packrelay worker",
            "version": version,
            "description": "What a packrelay gateway asks of a worker. Wire-compatible with a stock trtllm-serve worker.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        # Who may call is the network's matter.
        "security": [],
        "servers": [{"url": "/"}],
        "paths": _paths(),
        "components": {"schemas": _schemas()},
    }


def _schemas() -> Schema:
    _, made = schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    schemas: Schema = deepcopy(made)
    schemas["CompletionRequest"]["properties"]["prompt"] = PROMPT
    return schemas


def _paths() -> Schema:
    model = _parameter("model", "path", "The served name; it may hold slashes.", {"type": "string"})
    chat = _generation("createChatCompletion", "ChatCompletionRequest", "ChatCompletion", "ChatCompletionChunk")
    chat["requestBody"]["content"]["application/json"]["example"] = context_leg()
    return {
        "/v1/chat/completions": {"post": chat},
        "/v1/completions": {"post": _generation("createCompletion", "CompletionRequest", "Completion", "Completion")},
        "/v1/models": {"get": _get("listModels", "The model served here.", "ModelList")},
        "/v1/models/{model}": {"get": _get("retrieveModel", "The same.", "Model", 404) | {"parameters": [model]}},
        "/server_info": {"get": _get("serverInfo", "What this worker is and speaks.", "ServerInfo")},
        "/health": {"get": _empty("health", "The engine runs.")},
        "/health_generate": {"get": _empty("healthGenerate", "The engine just generated a token.")},
        "/version": {"get": {"operationId": "version", "responses": {"200": _version()}}},
        "/metrics": {"get": {"operationId": "metrics", "responses": {"200": _media("Counters.", "text/plain")}}},
        "/kv_cache_events": {
            "post": _list("kvCacheEvents", "What the KV cache stored and removed since it was last asked.")
        },
        "/_packrelay/iteration_stats": {"get": _list("iterationStats", "The engine's steps since it was last asked.")},
        "/_packrelay/abort": {"post": _abort()},
        "/_packrelay/handoff/{handle}": {"get": _handoff()},
    }


def _generation(operation: str, request: str, reply: str, chunk: str) -> Schema:
    content = content_of("application/json", reply) | content_of("text/event-stream", chunk)
    ok = {"description": "The answer.", "content": content | {MSGPACK_TYPE: {}}}
    return {
        "operationId": operation,
        "parameters": [
            _tag(),
            _parameter(REQUEST_ID_HEADER, "header", "The gateway's id of the request.", {"type": "string"}),
            _parameter(DEADLINE_HEADER, "header", "Milliseconds left for it.", {"type": "integer", "minimum": 0}),
            _parameter(DISAGG_AUTH_HEADER, "header", "Proof that the hand-off is the gateway's.", {"type": "string"}),
        ],
        "requestBody": {"required": True, "content": content_of("application/json", request)},
        "responses": {"200": ok} | error_replies(_GENERATION_ERRORS),
    }


def _get(operation: str, description: str, reply: str, *errors: int) -> Schema:
    ok = {"description": description, "content": content_of("application/json", reply)}
    return {"operationId": operation, "responses": {"200": ok} | error_replies(errors)}


def _empty(operation: str, description: str) -> Schema:
    return {"operationId": operation, "responses": {"200": {"description": description}} | error_replies([503])}


def _list(operation: str, description: str) -> Schema:
    """A list of objects in the engine's own terms; empty for an engine that keeps none."""
    schema = {"type": "array", "items": {"type": "object"}}
    ok = {"description": description, "content": {"application/json": {"schema": schema, "example": []}}}
    return {"operationId": operation, "responses": {"200": ok} | error_replies([500, 503])}


def _version() -> Schema:
    schema = {"type": "object", "properties": {"version": {"type": "string"}}, "required": ["version"]}
    content = {"application/json": {"schema": schema, "example": {"version": "0.1.0"}}}
    return {"description": "The version of packrelay.", "content": content}


def _media(description: str, kind: str) -> Schema:
    return {"description": description, "content": {kind: {}}}


def _abort() -> Schema:
    body = {"schema": reference("AbortRequest"), "example": example("AbortRequest")}
    answer = {"application/json": {"schema": {"type": "object"}, "example": {}}}
    return {
        "operationId": "abort",
        "parameters": [_tag()],
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": {"200": {"description": "Forgotten, if it was known.", "content": answer}} | error_replies([400]),
    }


def _handoff() -> Schema:
    return {
        "operationId": "fetchHandoff",
        "parameters": [_parameter("handle", "path", "The state's name; it works once.", {"type": "string"})],
        "responses": {"200": _media("The prefill state.", "application/octet-stream")} | error_replies([401, 404]),
    }


def _tag() -> Schema:
    schema = {"type": "string", "enum": [MSGPACK_HEADER_VALUE]}
    return _parameter(MSGPACK_HEADER, "header", "Set when the body is msgpack.", schema)


def _parameter(name: str, place: str, description: str, schema: Schema) -> Schema:
    required = place == "path"
    return {"name": name, "in": place, "required": required, "description": description, "schema": schema}
