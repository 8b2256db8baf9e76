"""What every test starts from."""

import os
from importlib.util import find_spec

import pytest
from hypothesis import settings

# A developer's own settings are not the tests'. Before collection, because parametrisation may already read a default.
for _name in [name for name in os.environ if name.startswith("PACKRELAY_")]:
    del os.environ[_name]

# How long an example takes says more about the machine than about the code; every test has its own timeout.
settings.register_profile("packrelay", deadline=None)
settings.load_profile("packrelay")


def pytest_configure() -> None:
    """What says that it tests the compiled gateway has it."""
    if os.environ.get("GATEWAY") == "compiled":
        door = find_spec("gateway.door")
        assert door is not None
        assert str(door.origin).endswith(".so"), door.origin


@pytest.fixture(scope="session", params=["http", "grpc"])
def link(request: pytest.FixtureRequest) -> str:
    """How a gateway speaks to its workers: what asks for this holds over both links."""
    return str(request.param)
