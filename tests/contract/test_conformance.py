"""Every vendored case, on every kind of fleet: what real clients and the public specification expect of such a server."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from tests.chaos.processes import Process
from tests.contract.conformance.case import Case, Filling, cases
from tests.contract.conformance.checks import exchange_of, run
from tests.contract.conformance.wire import Client
from tests.e2e.conftest import MODEL_MARKS
from tests.e2e.local_fleet import local_fleet, one_worker, two_legs

KEY = "a-key-of-the-conformance-cases"

FLEETS = [
    pytest.param(("scripted", two_legs("scripted")), id="two-legs-http"),
    pytest.param(("scripted", one_worker("scripted")), id="one-worker-http"),
    pytest.param(("scripted", two_legs("scripted", "--link", "grpc")), id="two-legs-grpc"),
    pytest.param(("scripted", one_worker("scripted", "--link", "grpc")), id="one-worker-grpc"),
    pytest.param(
        ("llama_cpp", two_legs("llama_cpp")), id="model-two-legs-http", marks=(*MODEL_MARKS, pytest.mark.slow)
    ),
]

FAULTS = {name for name, case in cases().items() if any("fault injection" in need for need in case.needs)}
"""Cases whose worker fails on purpose: see test_conformance_faults.py."""

MUST_BE_SERVED = {
    "cmpl-004-list-of-token-ids",
    "cmpl-007-empty-string",
    "cmpl-020-echo-logprobs",
    "cmpl-029-batch-stream",
    "lp-001-true",
    "lp-010-json-compliant",
    "pd-012-logprobs-across-seam",
    "rf-003-json-schema-strict",
    "samp-036-stop-empty-list",
    "samp-047-max-tokens-huge",
    "tools-008-required",
    "tools-027-arguments-invalid-json",
}
"""Cases that a server without the feature may refuse. This one has it."""


class Target(NamedTuple):
    """Who answers."""

    gateway: Client
    worker: Client


@pytest.fixture(scope="module", params=FLEETS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A fleet of real processes that asks for a key; and a worker beside it that asks for none."""
    engine, flags = request.param
    worker = Process("worker", tmp_path_factory.mktemp("worker") / "log", "--engine", engine)
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\n")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PACKRELAY_API_KEY_FILE", str(keys))
        environment.setenv("PACKRELAY_ACCESS_LOG", "false")
        # A request without a limit says as much as the context holds, which must not take for ever on a CPU.
        settings = {"context_length": "1024"} if engine == "llama_cpp" else {}
        with local_fleet(*flags, **settings) as fleet, started(worker):
            asking = Client(fleet.url, Filling(model="", key=KEY)).send({"method": "GET", "path": "/v1/models"})
            filling = Filling(model=asking.json()["data"][0]["id"], key=KEY)
            yield Target(Client(fleet.url, filling), Client(worker.url, filling))


@contextmanager
def started(process: Process) -> Iterator[None]:
    """A process that runs, and is gone when the block is left."""
    try:
        asyncio.run(process.start())
        yield
    finally:
        process.end()


@pytest.mark.parametrize("name", [name for name in cases() if name not in FAULTS])
def test_case(target: Target, name: str) -> None:
    """The answer has a status that is right, and every check of the case is true of it."""
    exchange = exchange_of(cases()[name], target.gateway, target.worker)

    run(exchange)
    assert exchange.answer.status == 200 or name not in MUST_BE_SERVED


def test_cases_are_all_there() -> None:
    """The vendored file is complete, and what is said about single cases is about cases there are."""
    known: dict[str, Case] = cases()

    assert len(known) == 157
    assert set(known) >= MUST_BE_SERVED | FAULTS
