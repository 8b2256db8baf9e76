"""The vendored material: what clients send, bodies that are hard to parse, the public API document."""

import json
from base64 import b64decode
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jsonschema import Draft202012Validator

DATA = Path(__file__).parent / "data"


class RecordedRequest(msgspec.Struct, frozen=True):
    """One request as a client sent it. `headers` as they came, hop by hop ones included."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: Any

    @property
    def client(self) -> str:
        """Who sent it, by its user agent."""
        return dict(self.headers).get("user-agent", "")


def recorded() -> dict[str, RecordedRequest]:
    """Every recorded request, by client and number; those that are equal but for the time of their recording only once."""
    found: dict[str, RecordedRequest] = {}
    seen: set[bytes] = set()
    for file in sorted((DATA / "recorded").glob("*.jsonl")):
        for number, line in enumerate(file.read_bytes().splitlines()):
            request = msgspec.json.decode(line, type=RecordedRequest)
            key = msgspec.json.encode((file.stem, request.method, request.path, request.body))
            if key not in seen:
                seen.add(key)
                found[f"{file.stem}-{number}{request.path.replace('/', '-')}"] = request
    return found


@cache
def hard_bodies() -> dict[str, bytes]:
    """Bodies that are hard to parse as JSON, by name."""
    lines = (DATA / "json_test_suite" / "bodies.jsonl").read_text().splitlines()
    return {entry["name"]: b64decode(entry["body"]) for entry in map(json.loads, lines)}


@cache
def openapi() -> dict[str, Any]:
    """The public API document."""
    document: dict[str, Any] = json.loads((DATA / "openapi" / "chat-completions-embeddings.json").read_bytes())
    return document


def properties(name: str) -> dict[str, Any]:
    """All properties of one of the document's schemas, with those it takes over from others."""
    return _properties({"$ref": f"#/components/schemas/{name}"})


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        schema = openapi()["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    inherited = [_properties(part) for part in schema.get("allOf", [])]
    return {name: value for part in [*inherited, schema.get("properties", {})] for name, value in part.items()}


def validator(name: str) -> Draft202012Validator:
    """Checks values against one of the document's schemas."""
    return Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": _with_nulls(openapi()["components"])}
    )


def _with_nulls(schema: Any) -> Any:
    """The document with OpenAPI 3.0's `nullable`, which it still uses, said as JSON Schema says it."""
    if isinstance(schema, list):
        return [_with_nulls(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _with_nulls(value) for key, value in schema.items()}
    return {"anyOf": [plain, {"type": "null"}]} if plain.pop("nullable", False) is True else plain
