"""The OpenAPI document: valid, true to the routes, true to the Structs."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from starlette.routing import Route

from schemas.openai.chat import ChatOptions
from schemas.openapi import document
from tests.unit.gateway_fakes import chat, rig

DOCUMENT = document("1.2.3")
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def validator(name: str) -> Draft202012Validator:
    """A validator for one of the document's schemas."""
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]})


def test_the_document_is_valid() -> None:
    """The document is OpenAPI 3.1."""
    validate(DOCUMENT)


def test_paths_and_methods_are_those_of_the_routes() -> None:
    """What is documented is served, and what is served is documented."""
    routes = [route for route in rig().door._app.routes if isinstance(route, Route)]

    served = {
        (route.path.replace(":path", ""), method)
        for route in routes
        for method in (route.methods or ())
        if method != "HEAD"
    }
    documented = {(path, method.upper()) for path, methods in DOCUMENT["paths"].items() for method in methods}

    assert served == documented


async def test_the_document_is_served() -> None:
    """/openapi.json is the document, with the version of the installed distribution."""
    client = rig().client

    served, version = (await client.get("/openapi.json")).json(), (await client.get("/version")).json()["version"]

    assert served == document(version)


def test_the_inner_hop_is_not_documented() -> None:
    """Fields that are refused from outside are in no schema."""
    assert "DisaggregatedParams" not in SCHEMAS
    assert "prompt_token_ids" not in SCHEMAS["ChatCompletionRequest"]["properties"]
    assert [name for name, schema in SCHEMAS.items() if "disaggregated_params" in schema["properties"]] == []


def test_every_other_field_is() -> None:
    """All fields of a chat request are in its schema."""
    inner = {"disaggregated_params", "prompt_token_ids", "prompt_token_ids_b64"}

    assert set(ChatOptions.__struct_fields__) - inner < set(SCHEMAS["ChatCompletionRequest"]["properties"])


@pytest.mark.parametrize("prompt", ["hi", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_a_prompt_has_every_form_it_is_read_in(prompt: Any) -> None:
    """Text, texts, ids, and lists of ids fit the documented prompt."""
    assert validator("CompletionRequest").is_valid({"model": "m", "prompt": prompt})


@pytest.mark.parametrize(
    ("body", "fits"), [(chat(), True), (chat(temperature=3), False), (chat(stop=["a"]), True), ({"model": "m"}, False)]
)
def test_the_schema_says_what_the_decoder_does(body: Any, fits: bool) -> None:
    """What the schema refuses the gateway refuses, and the other way round."""
    assert validator("ChatCompletionRequest").is_valid(body) is fits
