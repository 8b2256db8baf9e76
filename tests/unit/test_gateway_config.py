"""The gateway's settings: flags, variables and fields are one list."""

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, fields

import pytest

from gateway.cli import ENVIRONMENT_PREFIX, limits_of, main, orchestrator_of, parse, settings_parser
from gateway.config import GatewayConfig
from gateway.member import Role
from schemas.disagg import GENERATION_FIRST

WORKER = ("--worker", "http://h:1")
ALL_FIELDS = {item.name for item in fields(GatewayConfig)}


def settings(*arguments: str) -> GatewayConfig:
    """The settings of a command line with a worker."""
    config = parse([*WORKER, *arguments])
    assert config is not None
    return config


def flags() -> set[str]:
    """Every flag of the command line, negations left out."""
    names = [argument.names for argument in settings_parser().assemble_argument_collection()]
    return {name for group in names for name in group if name != "*" and not name.startswith("--no-")}


def test_every_field_is_a_flag_and_every_flag_a_field() -> None:
    """The command line is the fields of the settings, no more and no less."""
    assert flags() == {f"--{name.replace('_', '-')}" for name in ALL_FIELDS}


@pytest.mark.parametrize("field", sorted(ALL_FIELDS))
def test_every_field_is_a_variable(field: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every field can be set by a variable of its name."""
    assert main(["--help"]) == 0

    # The help is laid out in columns, so a long name is broken over two lines.
    shown = "".join(part for line in capsys.readouterr().out.splitlines() for part in line.strip("│ ").split())
    assert f"{ENVIRONMENT_PREFIX}{field.upper()}" in shown


def test_a_variable_is_read_and_a_flag_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags stand above variables, variables above defaults."""
    monkeypatch.setenv("PACKRELAY_PORT", "9000")
    monkeypatch.setenv("PACKRELAY_RETRIES", "3")

    config = settings("--port", "9001")

    assert (config.port, config.retries, config.grace) == (9001, 3, 30.0)


def test_a_list_is_given_by_repeating_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag may be given several times; a variable separates by spaces."""
    monkeypatch.setenv("PACKRELAY_CORS_ORIGIN", "https://a.example https://b.example")

    config = settings("--worker", "http://h:2")

    assert config.worker == ("http://h:1", "http://h:2")
    assert config.cors_origin == ("https://a.example", "https://b.example")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([*WORKER, "--port", "70000"], ["--port", "65535"]),
        ([*WORKER, "--max-in-flight", "0"], ["--max-in-flight", "1"]),
        ([*WORKER, "--request-timeout", "-1"], ["--request-timeout", "0"]),
        ([*WORKER, "--router", "random"], ["--router", "least_loaded", "round_robin"]),
        ([*WORKER, "--internal-key", ""], ["--internal-key", "empty"]),
        ([*WORKER, "--cors-origin", "a.example"], ["--cors-origin", "https://"]),
        (["--worker", "h:1"], ["--worker", "http://HOST:PORT"]),
        (["--worker", "http://u:p@h:1"], ["--worker", "http://HOST:PORT"]),
        (["--worker", "http://h:99999"], ["--worker", "http://HOST:PORT"]),
        (["--worker", "grpc://h"], ["--worker", "grpc://HOST:PORT"]),
        ([*WORKER, "--link", "grpc", "--link-tls-cert", "a"], ["--link-tls-key"]),
        ([*WORKER, "--link-tls-ca", "a"], ["--link grpc"]),
        (["--context-worker", "http://h:1"], ["--context-worker", "--generation-worker"]),
        ([], ["--worker", "--cluster-uri"]),
        (["--cluster-uri", "http://h:1"], ["--cluster-uri", "etcd://HOST:PORT"]),
        ([*WORKER, "--dialect", "klingon"], ["--dialect", "stock-2026-07"]),
        ([*WORKER, "--node-id", "256"], ["--node-id", "255"]),
        ([*WORKER, "--nope"], ["--nope"]),
    ],
)
def test_a_bad_setting_is_named_with_what_is_accepted(
    arguments: Sequence[str], names: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The process ends with status 2, and the message names the flag and the accepted values."""
    assert main(arguments) == 2

    message = capsys.readouterr().err
    assert [name for name in names if name not in message] == []


def test_settings_do_not_change() -> None:
    """The settings are frozen."""
    with pytest.raises(FrozenInstanceError):
        settings().port = 1  # type: ignore[misc]  # that is the point


def test_the_secret_is_not_shown() -> None:
    """Neither the log's form nor the repr has the key in it."""
    config = settings("--internal-key", "hush")

    assert config.masked()["internal_key"] == "***"
    assert "hush" not in f"{config!r}{config.masked()}"


def test_the_fleet_is_what_the_settings_name() -> None:
    """Workers get their roles, and the orchestrator its style, deadlines and key."""
    arguments = ["--context-worker", "http://c:1", "--generation-worker", "http://g:1", "--internal-key", "k"]
    timing = ["--schedule-style", "generation_first", "--idle-timeout", "7", "--retries", "2"]

    orchestrator = orchestrator_of(settings(*arguments, *timing))

    assert [worker.role for worker in orchestrator.fleet.workers] == [Role.CONTEXT, Role.GENERATION, Role.BOTH]
    assert orchestrator.serving.schedule_style == GENERATION_FIRST
    assert (orchestrator.serving.deadlines.idle, orchestrator.serving.retries) == (7.0, 2)
    assert orchestrator.serving.auth_key == "k"


def test_the_limits_are_what_the_settings_say() -> None:
    """Admission's limits are four of the settings."""
    limits = limits_of(settings("--max-in-flight", "7", "--max-waiting", "0", "--max-in-flight-bytes", "9"))

    assert (limits.max_in_flight, limits.max_waiting, limits.max_wait_seconds, limits.max_bytes) == (7, 0, 30.0, 9)
