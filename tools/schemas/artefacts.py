"""The files of schemas/generated, as bytes by path: the same on every run.

json-schema/NAME.json     JSON Schema 2020-12 of one type; types it is made of are references to their own files
openapi/gateway.json      what the gateway serves at /openapi.json
openapi/worker.json       the same for a worker
golden/NAME/SAMPLE.*      one message as a frame (.msgpack) and as JSON (.json)
channel.binpb             the gRPC channel: a FileDescriptorSet
"""

from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from schemas.codec import encode_frame, encode_json
from schemas.openapi import as_json, document
from schemas.openapi_worker import worker_document
from tools.schemas.catalogue import MESSAGES, ROOT, UNIONS, EventBatch, enums, wire_types
from tools.schemas.samples import Size, long_prompt, sample

Files = dict[str, bytes]
"""Contents by path under schemas/generated, with forward slashes."""

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
DESCRIPTOR: Final = "channel.binpb"
_READABLE_BYTES: Final = 64_000
"""Larger JSON is left on one line: nobody reads it, and a number a line would triple it."""


def all_files() -> Files:
    """Everything that is generated."""
    return snapshot_files() | openapi_files()


def snapshot_files() -> Files:
    """The part that a release keeps."""
    return json_schemas() | golden_frames() | {DESCRIPTOR: descriptor_set()}


def json_schemas() -> Files:
    """One file for each type that crosses a wire."""
    types = [*wire_types(), *enums(), *UNIONS.values()]
    made, components = msgspec.json.schema_components(types, ref_template="{name}.json")
    unions = dict(zip(UNIONS, made[-len(UNIONS) :], strict=True))
    batch = _referring(unions["EventBatch"], unions["Event"], "Event.json")
    named = {**components, **unions, "EventBatch": batch}
    return {f"json-schema/{name}.json": _schema_file(name, schema) for name, schema in sorted(named.items())}


def _referring(schema: Any, part: dict[str, Any], name: str) -> Any:
    """A schema in which a part that has a file of its own is a reference to it."""
    if schema == part:
        return {"$ref": name}
    if isinstance(schema, dict):
        return {key: _referring(value, part, name) for key, value in schema.items()}
    return [_referring(value, part, name) for value in schema] if isinstance(schema, list) else schema


def _schema_file(name: str, schema: dict[str, Any]) -> bytes:
    return readable({"$schema": DIALECT, "$id": f"{name}.json", "title": name, **schema})


def openapi_files() -> Files:
    """The two documents, as they are served."""
    return {
        "openapi/gateway.json": as_json(document(_version())),
        "openapi/worker.json": as_json(worker_document(_version())),
    }


def _version() -> str:
    project = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())["project"]
    return str(project["version"])


def golden_frames() -> Files:
    """Every sample of every message, in both encodings."""
    files: Files = {}
    for name, type_ in MESSAGES.items():
        for size in Size:
            value = _events(size) if type_ is EventBatch else sample(type_, size)
            files |= _golden(f"golden/{name}/{size.value}", value)
    return files | _golden("golden/CompletionRequest/nasty-long-prompt", long_prompt())


def _events(size: Size) -> Any:
    """One event of each kind; an empty batch is the smallest."""
    if size is Size.EMPTY:
        return []
    return [
        (stream, sample(MESSAGES[name], size)) for stream, name in enumerate(("Started", "Delta", "Done", "Failed"), 1)
    ]


def _golden(path: str, value: Any) -> Files:
    return {f"{path}.msgpack": encode_frame(value), f"{path}.json": readable(value)}


def descriptor_set() -> bytes:
    """What protoc made of proto/, out of the modules it wrote: one FileDescriptorSet."""
    files = []
    for path in sorted((ROOT / "schemas" / "pb").glob("*_pb2.py")):
        made = FileDescriptorProto()
        import_module(f"schemas.pb.{path.stem}").DESCRIPTOR.CopyToProto(made)
        files.append(made)
    return FileDescriptorSet(file=files).SerializeToString(deterministic=True)


def readable(value: Any) -> bytes:
    """JSON for people, unless it is too long for them; with a last newline."""
    made = encode_json(value)
    return (made if len(made) > _READABLE_BYTES else msgspec.json.format(made, indent=2)) + b"\n"


def read_folder(folder: Path) -> Files:
    """The files under a folder, by path."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def write_folder(folder: Path, files: Files) -> None:
    """Write files under a folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
