"""What is made from the types: up to date, the same every time, and right by judges that did not make it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from schemas.openapi import document
from schemas.openapi_worker import worker_document
from schemas.pb.channel_pb2 import Frame
from tests.fakes import ControlledEngine
from tests.unit.gateway_fakes import rig
from tests.worker_rig import make_service
from tools.schemas.__main__ import main
from tools.schemas.artefacts import DIALECT, Files, all_files, golden_frames, json_schemas
from tools.schemas.catalogue import GENERATED, MESSAGES, NEVER_SENT, enums, reachable, wire_types
from tools.schemas.compat import schemas_of
from tools.schemas.drift import drift, write
from tools.schemas.samples import Size
from worker.app import create_app
from worker.operations import Front

FILES: Files = json_schemas()
SCHEMAS = schemas_of(FILES)
REGISTRY: Registry[Any] = Registry().with_resources(
    (f"{name}.json", DRAFT202012.create_resource(schema)) for name, schema in SCHEMAS.items()
)
FRAMES = golden_frames()
DOCUMENTS = {"gateway": document("1.2.3"), "worker": worker_document("1.2.3")}


def test_everything_is_up_to_date() -> None:
    """The files in the repository are what the types say; `make schemas` brings them up to date."""
    stale = drift()

    assert not stale, stale


def test_output_is_the_same_every_time() -> None:
    """Two runs write the same bytes."""
    assert all_files() == all_files()


# --- drift ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is up to date."""
    made = tmp_path_factory.mktemp("generated")
    write(made)
    return made


def test_a_fresh_folder_has_no_drift(folder: Path) -> None:
    """What was just written is up to date."""
    assert not drift(folder)


def test_a_changed_file_is_drift(folder: Path) -> None:
    """A file with other bytes is named, and written again."""
    (folder / "json-schema" / "Usage.json").write_bytes(b"{}")

    assert drift(folder).changed == ["json-schema/Usage.json"]
    assert write(folder).changed == ["json-schema/Usage.json"]
    assert not drift(folder)


def test_a_missing_file_is_drift(folder: Path) -> None:
    """A file that is not there is named, and written."""
    (folder / "channel.binpb").unlink()

    assert write(folder).missing == ["channel.binpb"]
    assert not drift(folder)


def test_a_file_that_nothing_makes_is_drift(folder: Path) -> None:
    """A file too many is named, and removed."""
    (folder / "json-schema" / "Zebra.json").write_bytes(b"{}")

    assert write(folder).unexpected == ["json-schema/Zebra.json"]
    assert not drift(folder)


def test_snapshots_are_no_drift(folder: Path) -> None:
    """What was released stays as it was."""
    kept = folder / "released" / "0.0.1" / "json-schema" / "Zebra.json"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"{}")

    assert not write(folder)
    assert kept.exists()


def test_an_unknown_command_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a known command nothing is done."""
    assert main(["rewrite"]) == 2
    assert "write | check" in capsys.readouterr().err


# --- JSON Schema ---


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_valid(name: str) -> None:
    """Each file is JSON Schema 2020-12."""
    Draft202012Validator.check_schema(SCHEMAS[name])

    assert SCHEMAS[name]["$schema"] == DIALECT


def test_every_type_has_a_schema() -> None:
    """There is a schema for every public type that crosses a wire."""
    assert {made.__name__ for made in (*wire_types(), *enums())} < set(SCHEMAS)


def test_every_type_is_in_a_message() -> None:
    """What is part of no message is a view, a base of one, or never sent."""
    inside = {name for message in MESSAGES.values() for name in reachable(message)}
    outside = {made.__name__ for made in wire_types()} - inside

    assert outside == {
        "ChatOptions",
        "ChatView",
        "CompletionOptions",
        "CompletionView",
        "GenerationOptions",
        "TolerantChatView",
        "TolerantCompletionView",
    }
    assert all(NEVER_SENT.values())


# --- golden frames ---


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_has_every_sample(name: str) -> None:
    """Each message is there minimal, full, and nasty in three ways, in both encodings."""
    wanted = {f"golden/{name}/{size}.{kind}" for size in Size for kind in ("json", "msgpack")}

    assert wanted <= set(FRAMES)


@pytest.mark.parametrize("path", [path for path in FRAMES if path.endswith(".json")])
def test_a_sample_fits_its_schema(path: str) -> None:
    """The JSON of each sample is valid by the schema of its type."""
    name = path.split("/")[1]
    validator = Draft202012Validator({"$ref": f"{name}.json"}, registry=REGISTRY)

    validator.validate(json.loads(FRAMES[path]))


def test_samples_are_nasty() -> None:
    """Among the samples are 63-bit ids, text of four bytes a character, null beside unset, empty and long lists."""
    huge, null = (json.loads(FRAMES[f"golden/DisaggregatedParams/nasty-{kind}.json"]) for kind in ("huge", "null"))

    assert huge["disagg_request_id"] == 2**63 - 1
    assert "𝄞" in huge["conversation_id"]
    assert (null["ctx_request_id"], len(huge["first_gen_tokens"])) == (None, 20)
    assert "ctx_request_id" not in json.loads(FRAMES["golden/DisaggregatedParams/minimal.json"])
    assert json.loads(FRAMES["golden/DisaggregatedParams/nasty-empty.json"])["first_gen_tokens"] == []
    assert b"\xdd\x00\x01\x00\x00" in FRAMES["golden/CompletionRequest/nasty-long-prompt.msgpack"]


# --- OpenAPI ---


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_valid(name: str) -> None:
    """Both documents are OpenAPI 3.1."""
    OpenAPIV31SpecValidator(DOCUMENTS[name]).validate()

    assert DOCUMENTS[name]["openapi"] == "3.1.0"


def bodies(part: Any) -> Iterator[dict[str, Any]]:
    """Every media type of a document that has a schema."""
    if isinstance(part, dict):
        if "schema" in part and "in" not in part:
            yield part
        for inner in part.values():
            yield from bodies(inner)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_examples_are_valid(name: str) -> None:
    """Every body that has a schema has an example, and it fits."""
    components = DOCUMENTS[name]["components"]
    found = list(bodies(DOCUMENTS[name]["paths"]))

    assert len(found) > 20
    for body in found:
        Draft202012Validator({**body["schema"], "components": components}).validate(body["example"])


async def test_the_worker_document_has_the_worker_routes() -> None:
    """What a worker serves is in its document, and nothing else is."""
    engine = ControlledEngine()
    app = create_app(make_service(engine, await engine.start()), Front(max_body_bytes=1))
    routes = [route for route in app.routes if isinstance(route, APIRoute)]

    served = {(re.sub(r"{.*?}", "{}", route.path), method) for route in routes for method in route.methods or ()}
    paths = DOCUMENTS["worker"]["paths"]
    documented = {(re.sub(r"{.*?}", "{}", path), method.upper()) for path in paths for method in paths[path]}

    assert {(path, method) for path, method in documented if method != "PARAMETERS"} == served


async def test_the_served_document_is_the_generated_one() -> None:
    """The gateway serves the bytes that are checked in."""
    served = await rig().client.get("/openapi.json")

    assert served.body == (GENERATED / "openapi" / "gateway.json").read_bytes()


# --- the channel ---


def test_numbers_of_the_channel_are_fixed() -> None:
    """Numbers, not names, are what an older peer reads."""
    numbers = {field.name: field.number for field in Frame.DESCRIPTOR.fields}

    assert numbers == {"stream": 1, "kind": 2, "operation": 3, "headers": 4, "payload": 5}
