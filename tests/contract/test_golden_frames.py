"""Frames that were released, and those that are to be: read by today's types, written as the same bytes, read by others."""

import json
from base64 import b64encode
from typing import Any

import msgpack  # type: ignore[import-untyped]  # the package carries no types
import pytest

from schemas.codec import read_chat_frame, read_completion_frame, read_events
from tools.schemas.artefacts import Files, read_folder
from tools.schemas.catalogue import GENERATED, MESSAGES
from tools.schemas.changes import covers, declared
from tools.schemas.frames import frame_findings
from tools.schemas.release import snapshot, versions

UNRELEASED = read_folder(GENERATED / "golden")
RELEASED = {version: snapshot(version) for version in versions()}
SAMPLES = sorted({path.rpartition(".")[0] for path in UNRELEASED})


def pairs() -> list[tuple[str, str]]:
    """Every released frame, as its version and its path without the ending."""
    return [
        (version, path.removesuffix(".msgpack"))
        for version, files in RELEASED.items()
        for path in files
        if path.endswith(".msgpack")
    ]


def both(files: Files, path: str) -> tuple[bytes, bytes]:
    """A sample as a frame and as JSON."""
    return files[f"{path}.msgpack"], files[f"{path}.json"]


@pytest.mark.parametrize(("version", "path"), pairs())
def test_a_released_frame_is_read_and_written_as_it_was(version: str, path: str) -> None:
    """Today's types read what a release wrote, and write the same bytes, except where schemas/changes.toml says otherwise."""
    frame, text = both(RELEASED[version], path)

    found = frame_findings({f"{path}.msgpack": frame, f"{path}.json": text})

    assert [made for made in found if not any(covers(change, made, version) for change in declared())] == []


@pytest.mark.parametrize("version", RELEASED)
def test_a_release_has_frames_of_its_messages(version: str) -> None:
    """Each snapshot holds at least three samples of every message it knows."""
    paths = [
        path.split("/")[1] for path in RELEASED[version] if path.startswith("golden/") and path.endswith(".msgpack")
    ]

    assert {name: count for name in set(paths) if (count := paths.count(name)) < 3} == {}


@pytest.mark.parametrize("path", SAMPLES)
def test_another_library_reads_the_same(path: str) -> None:
    """A msgpack library that is not ours reads a frame as its JSON says, bytes being base64 there."""
    frame, text = both(UNRELEASED, path)

    assert as_json(msgpack.unpackb(frame, strict_map_key=True)) == json.loads(text)


def as_json(value: Any) -> Any:
    """A decoded frame with its bytes as JSON has them."""
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, list):
        return [as_json(part) for part in value]
    if isinstance(value, dict):
        return {key: as_json(part) for key, part in value.items()}
    return value


def frames_of(name: str) -> list[bytes]:
    """The frames of a message that every reader takes."""
    paths = [path for path in SAMPLES if path.startswith(f"{name}/") and not path.endswith("nasty-empty")]
    return [both(UNRELEASED, path)[0] for path in paths]


def test_a_worker_reads_the_requests() -> None:
    """Golden requests go through the worker's own readers, the deferred form included."""
    chats = [
        read_chat_frame(frame) for name in ("ChatCompletionRequest", "DeferredChatRequest") for frame in frames_of(name)
    ]
    completions = [read_completion_frame(frame) for frame in frames_of("CompletionRequest")]

    assert (len(chats), len(completions)) == (8, 5)
    assert all(chat.messages for chat in chats)


def test_a_gateway_reads_the_events() -> None:
    """Golden batches go through the gateway's own reader, and nothing in them is unknown."""
    batches = [read_events(frame) for frame in frames_of("EventBatch")]

    assert [(len(events), skipped) for events, skipped in batches] == [(4, 0)] * 4


def test_every_message_is_here() -> None:
    """The folder holds the messages of the catalogue."""
    assert {path.split("/")[0] for path in SAMPLES} == set(MESSAGES)
