"""The proto and its stubs: numbers are the contract, everything is documented, and what is checked in is what the tool writes."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from schemas.pb import channel_pb2
from schemas.pb.channel_pb2 import Frame, Kind

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto" / "channel.proto"
GENERATED = ROOT / "schemas" / "pb"
STUBS = ["channel_pb2.py", "channel_pb2.pyi", "channel_pb2_grpc.py", "channel_pb2_grpc.pyi"]

_THING = re.compile(r"^\s*(rpc \w+|\w+ \w+ = \d+|map<.*?> \w+ = \d+|\w+ = \d+|message \w+|enum \w+|service \w+)")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make proto` writes, in a folder of its own."""
    folder = tmp_path_factory.mktemp("proto")
    (folder / "proto").symlink_to(PROTO.parent)
    (folder / "schemas" / "pb").mkdir(parents=True)
    plugins = ["--python_out=.", "--grpc_python_out=.", "--mypy_out=quiet:.", "--mypy_grpc_out=quiet:."]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "schemas/pb=proto", *plugins, "proto/channel.proto"]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    subprocess.run(command, cwd=folder, env={"PATH": path}, check=True)
    return folder / "schemas" / "pb"


@pytest.mark.parametrize("name", STUBS)
def test_stub_is_what_the_tool_writes(written: Path, name: str) -> None:
    """Each stub that is checked in is, byte for byte, what the pinned tools make of the proto."""
    assert (GENERATED / name).read_text() == (written / name).read_text()


def test_nothing_else_is_generated(written: Path) -> None:
    """The tools write these files and no others, and beside them only the package's own file is checked in."""
    assert sorted(path.name for path in written.iterdir()) == STUBS
    assert sorted(path.name for path in GENERATED.iterdir() if path.is_file()) == ["__init__.py", *STUBS]


def test_field_numbers_stay() -> None:
    """The numbers of Frame's fields and of the kinds are what peers have compiled in."""
    assert {field.name: field.number for field in Frame.DESCRIPTOR.fields} == {
        "stream": 1,
        "kind": 2,
        "operation": 3,
        "headers": 4,
        "payload": 5,
    }
    assert dict(Kind.items()) == {
        "KIND_UNSPECIFIED": 0,
        "OPEN": 1,
        "CANCEL": 2,
        "EVENTS": 3,
        "REPLY": 4,
        "PING": 5,
        "GOAWAY": 6,
    }


def test_the_service_is_named_by_package_and_version() -> None:
    """Other protos in the same process cannot collide with ours, and the three rpcs stream as documented."""
    service = channel_pb2.DESCRIPTOR.services_by_name["Channel"]

    assert (channel_pb2.DESCRIPTOR.name, service.full_name) == ("schemas/pb/channel.proto", "packrelay.v1.Channel")
    assert [method.name for method in service.methods] == ["Call", "Generate", "Exchange"]


def test_everything_in_the_proto_is_documented() -> None:
    """Every message, field, kind, service and rpc has a comment right above it."""
    lines = PROTO.read_text().splitlines()
    bare = [line for before, line in pairwise(lines) if _THING.match(line) and "//" not in before]

    assert bare == []
