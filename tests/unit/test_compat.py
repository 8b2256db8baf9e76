"""A wire that may only grow: each rule is broken on purpose here, and what is allowed passes."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from tools.schemas.__main__ import main
from tools.schemas.artefacts import DESCRIPTOR, descriptor_set, golden_frames, snapshot_files, write_folder
from tools.schemas.catalogue import ROOT
from tools.schemas.changes import Change, covers, declared
from tools.schemas.channel_compat import channel_findings
from tools.schemas.compat import Schemas, schema_findings
from tools.schemas.finding import Finding, Rule
from tools.schemas.frames import frame_findings
from tools.schemas.release import ReleaseRefused, findings, release, snapshot, versions

# A made-up wire: a message and two events. A field is a type, and a default unless it is required.
Field = tuple[Any, ...]
NEST: dict[str, Field] = {
    "tree": (str,),
    "height": (Annotated[int, Meta(ge=0, le=100)], 10),
    "width": (Annotated[float, Meta(gt=0)], 1.0),
    "colour": (Annotated[str, Meta(min_length=1, max_length=9)] | None | UnsetType, UNSET),
    "eggs": (Annotated[list[int], Meta(max_length=4)] | UnsetType, UNSET),
    "season": (Literal["spring", "summer"], "spring"),
    "mood": (Any, UNSET),
}


class Hatched(Struct, tag="hatched"):
    """An event."""


class Flown(Struct, tag="flown"):
    """Another."""


class Fledged(Struct, tag="fledged"):
    """The same under another tag."""


def wire(nest: dict[str, Field], events: Any = Hatched | Flown, **config: Any) -> Schemas:
    """The schemas of the made-up wire."""
    message = defstruct("Nest", [(name, *field) for name, field in nest.items()], kw_only=True, **config)
    (_, event), made = msgspec.json.schema_components([message, events], ref_template="{name}.json")
    # Through JSON, as the files of a release are.
    schemas: Schemas = json.loads(json.dumps({**made, "Event": event}))
    return schemas


def broken(today: Schemas) -> list[tuple[str, str, Rule]]:
    """What is found in today's schemas against the released ones."""
    return [(found.type, found.field, found.rule) for found in schema_findings(wire(NEST), today)]


def without(name: str) -> dict[str, Field]:
    """The message without a field."""
    return {field: made for field, made in NEST.items() if field != name}


# --- schemas ---


def test_the_same_wire_is_no_finding() -> None:
    """What was not changed passes."""
    assert broken(wire(NEST)) == []


@pytest.mark.parametrize(
    ("field", "made", "rule"),
    [
        ("tree", (int,), Rule.CHANGED_TYPE),
        ("tree", (str | None,), Rule.CHANGED_TYPE),
        ("colour", (Annotated[str, Meta(min_length=1, max_length=9)] | UnsetType, UNSET), Rule.CHANGED_TYPE),
        ("eggs", (Annotated[list[str], Meta(max_length=4)] | UnsetType, UNSET), Rule.CHANGED_TYPE),
        ("mood", (str | UnsetType, UNSET), Rule.CHANGED_TYPE),
        ("season", (str, "spring"), Rule.CHANGED_TYPE),
        ("tree", (str, ""), Rule.CHANGED_DEFAULT),
        ("height", (Annotated[int, Meta(ge=0, le=100)], 11), Rule.CHANGED_DEFAULT),
        ("height", (Annotated[int, Meta(ge=0, le=100)],), Rule.CHANGED_DEFAULT),
        ("mood", (Any, None), Rule.CHANGED_DEFAULT),
        ("new", (str,), Rule.NEW_FIELD_WITHOUT_DEFAULT),
        ("height", (Annotated[int, Meta(ge=1, le=100)], 10), Rule.NARROWED_BOUND),
        ("height", (Annotated[int, Meta(gt=0, le=100)], 10), Rule.NARROWED_BOUND),
        ("height", (Annotated[int, Meta(ge=0, le=99)], 10), Rule.NARROWED_BOUND),
        ("height", (Annotated[int, Meta(ge=0, lt=100)], 10), Rule.NARROWED_BOUND),
        ("width", (Annotated[float, Meta(gt=0, le=5)], 1.0), Rule.NARROWED_BOUND),
        ("tree", (Annotated[str, Meta(max_length=5)],), Rule.NARROWED_BOUND),
        ("colour", (Annotated[str, Meta(min_length=2, max_length=9)] | None | UnsetType, UNSET), Rule.NARROWED_BOUND),
        ("eggs", (Annotated[list[int], Meta(max_length=3)] | UnsetType, UNSET), Rule.NARROWED_BOUND),
        (
            "eggs",
            (Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=4)] | UnsetType, UNSET),
            Rule.NARROWED_BOUND,
        ),
        ("season", (Literal["spring"], "spring"), Rule.NARROWED_BOUND),
    ],
)
def test_a_change_that_breaks_a_peer_is_found(field: str, made: Field, rule: Rule) -> None:
    """A field that an older peer would misread is named, with the rule, and nothing else is."""
    assert broken(wire(NEST | {field: made})) == [("Nest", field, rule)]


@pytest.mark.parametrize("name", NEST)
def test_a_removed_field_is_found(name: str) -> None:
    """Each field stays."""
    assert broken(wire(without(name))) == [("Nest", name, Rule.REMOVED_FIELD)]


def test_a_renamed_field_is_found() -> None:
    """A new name is a removal and a new field."""
    assert broken(wire(without("tree") | {"bush": (str,)})) == [
        ("Nest", "tree", Rule.REMOVED_FIELD),
        ("Nest", "bush", Rule.NEW_FIELD_WITHOUT_DEFAULT),
    ]


def test_a_removed_type_is_found() -> None:
    """A type that is gone is one finding."""
    today = wire(NEST)
    del today["Nest"]

    assert broken(today) == [("Nest", "", Rule.REMOVED_TYPE)]


def test_a_removed_tag_is_found() -> None:
    """An event that no longer exists, or goes by another tag, is named by its tag."""
    gone = [("Flown", "", Rule.REMOVED_TYPE), ("Event", "flown", Rule.REMOVED_TAG)]

    assert broken(wire(NEST, Hatched | Fledged)) == gone


def test_a_renamed_tag_is_found() -> None:
    """The same type under another tag is named by its tag field."""
    today = json.loads(json.dumps(wire(NEST)).replace('"flown"', '"flew"'))

    assert broken(today) == [("Flown", "type", Rule.REMOVED_TAG)]


def test_refusing_unknown_fields_is_found() -> None:
    """A newer peer's fields must not begin to be refused."""
    assert broken(wire(NEST, forbid_unknown_fields=True)) == [("Nest", "", Rule.NARROWED_BOUND)]


@pytest.mark.parametrize(
    "today",
    [
        wire(NEST | {"new": (str | UnsetType, UNSET)}),
        wire(NEST | {"new": (int, 3)}),
        wire(NEST | {"height": (Annotated[int, Meta(ge=-1)], 10)}),
        wire(NEST | {"width": (Annotated[float, Meta(ge=0)], 1.0)}),
        wire(NEST | {"season": (Literal["spring", "summer", "winter"], "spring")}),
        wire(dict(reversed(NEST.items()))),
        wire(NEST, Hatched | Flown | Fledged),
    ],
    ids=["optional-field", "field-with-default", "wider", "wider-still", "new-value", "other-order", "new-tag"],
)
def test_growing_is_allowed(today: Schemas) -> None:
    """New fields with a default, wider bounds, new values, new tags: older peers live with them."""
    assert broken(today) == []


def test_a_finding_says_what_was_and_what_is() -> None:
    """A finding names type, field and rule, and both states."""
    (found,) = schema_findings(wire(NEST), wire(NEST | {"height": (Annotated[int, Meta(ge=5, le=100)], 10)}))

    assert str(found) == "Nest.height: the minimum was 0, and is 5 (rule narrowed-bound)"


def test_an_inherited_field_is_found_once() -> None:
    """A change of a field that three requests inherit is one finding, at the type that declares it."""
    released = snapshot_schemas()
    for name in ("GenerationOptions", "ChatOptions", "ChatCompletionRequest", "CompletionRequest"):
        released[name]["properties"]["seed"] = {"type": "string"}

    found = schema_findings(released, snapshot_schemas())

    assert [(made.type, made.field) for made in found] == [("GenerationOptions", "seed")]


def snapshot_schemas() -> Schemas:
    """Today's schemas, as a release would keep them."""
    made: dict[str, bytes] = {name: data for name, data in snapshot_files().items() if name.startswith("json-schema/")}
    return {Path(name).stem: json.loads(data) for name, data in made.items()}


# --- the channel ---

CHANNEL = descriptor_set()


def edited(edit: Callable[[FileDescriptorProto], object]) -> bytes:
    """The channel after an edit of its file."""
    files = FileDescriptorSet.FromString(CHANNEL)
    edit(files.file[0])
    return files.SerializeToString()


def renamed(file: FileDescriptorProto) -> None:
    """Number 3 of a frame means something else."""
    file.message_type[0].field[2].name = "purpose"


def retyped(file: FileDescriptorProto) -> None:
    """The stream's number becomes text."""
    file.message_type[0].field[0].type = FieldDescriptorProto.TYPE_STRING


def moved(file: FileDescriptorProto) -> None:
    """A field gets another number."""
    file.message_type[0].field[4].number = 9


def another_kind(file: FileDescriptorProto) -> None:
    """A kind takes over the number of another."""
    file.enum_type[0].value[6].name = "FAREWELL"


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (lambda file: file.message_type[0].field.pop(), ("Frame", "payload", Rule.REMOVED_FIELD)),
        (moved, ("Frame", "payload", Rule.REMOVED_FIELD)),
        (renamed, ("Frame", "operation", Rule.REUSED_NUMBER)),
        (retyped, ("Frame", "stream", Rule.CHANGED_TYPE)),
        (lambda file: file.enum_type[0].value.pop(), ("Kind", "GOAWAY", Rule.REMOVED_FIELD)),
        (another_kind, ("Kind", "GOAWAY", Rule.REUSED_NUMBER)),
        (lambda file: file.enum_type.pop(), ("Kind", "", Rule.REMOVED_TYPE)),
        (lambda file: file.service[0].method.pop(), ("Channel", "Exchange", Rule.REMOVED_FIELD)),
        (lambda file: file.service[0].method[0].ClearField("output_type"), ("Channel", "Call", Rule.CHANGED_TYPE)),
    ],
)
def test_a_change_of_the_channel_is_found(
    edit: Callable[[FileDescriptorProto], object], found: tuple[str, str, Rule]
) -> None:
    """A number that is gone, moved, or means something else is named."""
    name, field, rule = found

    assert [(made.type, made.field, made.rule) for made in channel_findings(CHANNEL, edited(edit))] == [
        (f"packrelay.v1.{name}", field, rule)
    ]


def test_another_package_is_found() -> None:
    """Under another package name nothing is where it was."""
    found = channel_findings(CHANNEL, edited(lambda file: setattr(file, "package", "packrelay.v2")))

    assert {made.rule for made in found} == {Rule.REMOVED_TYPE, Rule.REMOVED_FIELD}


def test_a_reserved_number_is_not_used_again() -> None:
    """A number that was given up for good stays so."""
    reserved = edited(lambda file: file.message_type[0].reserved_range.add(start=6, end=8))
    revived = edited(lambda file: file.message_type[0].field.add(name="late", number=7, type=9, label=1))

    (found,) = channel_findings(reserved, revived)

    assert (found.field, found.rule) == ("late", Rule.REUSED_NUMBER)


def test_a_new_field_of_the_channel_is_allowed() -> None:
    """A new number is read by nobody who does not know it."""
    grown = edited(lambda file: file.message_type[0].field.add(name="late", number=6, type=9, label=1))

    assert channel_findings(CHANNEL, grown) == []


# --- frames ---


def test_todays_frames_are_no_finding() -> None:
    """What was just written is read, and written the same."""
    assert list(frame_findings(golden_frames())) == []


def test_a_frame_that_is_not_read_is_found() -> None:
    """A released frame that today's types refuse is named by message and sample."""
    frames = {"golden/AbortRequest/full.msgpack": b"\x80", "golden/AbortRequest/full.json": b"{}"}

    (found,) = frame_findings(frames)

    assert (found.type, found.field, found.rule) == ("AbortRequest", "full", Rule.UNREADABLE_FRAME)


def test_a_frame_that_is_written_otherwise_is_found() -> None:
    """Bytes that today's types would not write are named: here, a field they do not know."""
    value = {"request_id": "a", "unknown": 1}
    frames = {
        "golden/AbortRequest/full.msgpack": msgspec.msgpack.encode(value),
        "golden/AbortRequest/full.json": msgspec.json.encode(value),
    }

    (found,) = frame_findings(frames)

    assert found.rule is Rule.CHANGED_FRAME


# --- declared changes ---

FINDING = Finding("Nest", "height", Rule.CHANGED_DEFAULT, "")
CHANGE = Change(after="0.1.0", type="Nest", field="height", rule=Rule.CHANGED_DEFAULT, reason="Nests moved.")


@pytest.mark.parametrize(
    ("finding", "version", "is_covered"),
    [
        (FINDING, "0.1.0", True),
        (FINDING, "0.0.9", True),
        (FINDING, "0.2.0", False),
        (Finding("Nest", "width", Rule.CHANGED_DEFAULT, ""), "0.1.0", False),
        (Finding("Nest", "height", Rule.CHANGED_TYPE, ""), "0.1.0", False),
        (Finding("Tree", "height", Rule.CHANGED_DEFAULT, ""), "0.1.0", False),
    ],
)
def test_a_declaration_covers_what_it_names(finding: Finding, version: str, is_covered: bool) -> None:
    """Type, field and rule must be those declared, and the snapshot must be from before the change."""
    assert covers(CHANGE, finding, version) is is_covered


def test_a_declaration_covers_frames_of_messages_that_hold_the_type() -> None:
    """A message's bytes follow from its parts: they are not declared twice."""
    change = Change(after="0.1.0", type="Usage", field="total_tokens", rule=Rule.CHANGED_DEFAULT, reason="It changed.")

    assert covers(change, Finding("Done", "full", Rule.CHANGED_FRAME, ""), "0.1.0")
    assert not covers(change, Finding("AbortRequest", "full", Rule.CHANGED_FRAME, ""), "0.1.0")


def test_declarations_are_read_strictly() -> None:
    """An unknown rule or a field too many is an error."""
    with pytest.raises(msgspec.ValidationError):
        declared(b'[[change]]\nafter="0.1.0"\ntype="a"\nfield=""\nrule="whim"\nreason="r"')
    with pytest.raises(msgspec.ValidationError):
        declared(b'[[change]]\nafter="0.1.0"\ntype="a"\nfield=""\nrule="removed-type"\nreason="r"\nmore=1')


def test_the_changelog_quotes_declared_changes() -> None:
    """Whoever has to change something for it reads of it."""
    changelog = " ".join((ROOT / "CHANGELOG.md").read_text().split())

    assert [change.reason for change in declared() if change.reason not in changelog] == []


# --- releases ---


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A folder with a release that had `sum` for `total_tokens`."""
    files = snapshot_files()
    usage = files["json-schema/Usage.json"].replace(b"total_tokens", b"sum")
    write_folder(tmp_path / "released" / "0.1.0", files | {"json-schema/Usage.json": usage})
    return tmp_path


REMOVED = Change(after="0.1.0", type="Usage", field="sum", rule=Rule.REMOVED_FIELD, reason="Nobody could add.")


def test_an_undeclared_change_is_found(released: Path) -> None:
    """The types are held against the last snapshot."""
    undeclared, unneeded = findings([], released)

    assert [(made.place, made.rule) for made in undeclared] == [("Usage.sum", Rule.REMOVED_FIELD)]
    assert unneeded == []


def test_a_declared_change_passes(released: Path) -> None:
    """A change with a reason is no finding, and its declaration is needed."""
    assert findings([REMOVED], released) == ([], [])


def test_a_declaration_that_nothing_needs_is_found(released: Path) -> None:
    """What is declared must be so."""
    assert findings([REMOVED, CHANGE], released) == ([], [CHANGE])


def test_declarations_of_earlier_releases_are_kept(released: Path) -> None:
    """A change from before the last release explains old frames: it may stay."""
    assert findings([REMOVED, msgspec.structs.replace(CHANGE, after="0.0.1")], released) == ([], [])


def test_frames_of_every_release_are_read(released: Path) -> None:
    """A frame of a release before the last is held too, and so are its channel numbers."""
    old = {
        "golden/AbortRequest/full.msgpack": b"\x80",
        "golden/AbortRequest/full.json": b"{}",
        DESCRIPTOR: edited(renamed),
    }
    write_folder(released / "released" / "0.0.9", old)

    undeclared, _ = findings([REMOVED], released)

    assert [(made.type, made.rule) for made in undeclared] == [
        ("AbortRequest", Rule.UNREADABLE_FRAME),
        ("packrelay.v1.Frame", Rule.REUSED_NUMBER),
    ]


def test_a_release_is_a_snapshot(tmp_path: Path) -> None:
    """A release keeps schemas, frames and channel, and is then the last one."""
    release("0.1.0", [], tmp_path)
    release("0.2.0", [], tmp_path)

    assert versions(tmp_path) == ["0.1.0", "0.2.0"]
    assert snapshot("0.2.0", tmp_path) == snapshot_files()
    assert findings([], tmp_path) == ([], [])


def test_versions_are_ordered_as_numbers(tmp_path: Path) -> None:
    """Ten comes after nine."""
    for version in ("0.9.0", "0.10.0"):
        (tmp_path / "released" / version).mkdir(parents=True)

    assert versions(tmp_path) == ["0.9.0", "0.10.0"]


@pytest.mark.parametrize("version", ["0.1.0", "0.0.9", "1", "1.0", "v1.0.0", "01.0.0", "", "../x", "1.0.0/.."])
def test_a_release_is_refused(version: str, released: Path) -> None:
    """A version that is released, older than a released one, or none at all, writes nothing."""
    with pytest.raises(ReleaseRefused):
        release(version, [REMOVED], released)

    assert versions(released) == ["0.1.0"]


def test_a_release_of_a_broken_wire_is_refused(released: Path) -> None:
    """A rule that was broken is declared first."""
    with pytest.raises(ReleaseRefused, match="schemas-compat"):
        release("0.2.0", [], released)


def test_without_a_snapshot_nothing_is_compatible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that compares with nothing fails, and says what to do."""
    monkeypatch.setattr("tools.schemas.__main__.versions", lambda: versions(tmp_path))

    assert main(["compat"]) == 1


def test_the_types_are_compatible() -> None:
    """Today's types break nobody who has the last release, but for what is declared."""
    undeclared, unneeded = findings(declared())

    assert [str(finding) for finding in undeclared] == []
    assert unneeded == []


# --- the message ---


def test_one_changed_field_says_what_to_do(tmp_path: Path) -> None:
    """After a change of one field the check names the files to write again, the field, and the rule that was broken."""
    copy = copied(tmp_path)
    usage = copy / "schemas" / "openai" / "usage.py"
    usage.write_text(usage.read_text().replace("cached_tokens: int = 0", "cached_tokens: str = ''"))

    said = run(copy, "check")

    assert "changed  schemas/generated/json-schema/PromptTokensDetails.json" in said
    assert "changed  schemas/generated/golden/Done/full.msgpack" in said
    assert "make schemas" in said
    assert "PromptTokensDetails.cached_tokens: the type was" in said
    assert "(rule changed-type)" in said


def copied(folder: Path) -> Path:
    """The parts of this checkout that the check reads, elsewhere."""
    for name in ("schemas", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run(folder: Path, command: str) -> str:
    """What the check says there; it must fail."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.schemas", command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    return done.stderr
