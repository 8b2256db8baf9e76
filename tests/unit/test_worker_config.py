"""What packrelay-worker can be told, and how it says no."""

from dataclasses import fields

import pytest

from worker.cli import main, parser
from worker.config import WorkerConfig
from worker.server import bind


def configured(*arguments: str) -> WorkerConfig:
    """The configuration that a command line makes."""
    config: WorkerConfig = parser()(arguments)
    return config


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is said about a wrong command line, in one line."""
    with pytest.raises(SystemExit) as exit_:
        parser()(arguments)

    assert exit_.value.code != 0
    said = capsys.readouterr()
    return " ".join((said.out + said.err).replace("│", " ").split())


TOGETHER = ("grpc_tls", "tls_", "cluster_uri", "require_key")
SINGLE = [field.name for field in fields(WorkerConfig) if not field.name.startswith(TOGETHER)]
"""The fields that can be set without another one."""


class TestFlags:
    def test_flags_and_fields_are_the_same(self) -> None:
        """Every field has exactly one flag of its name, and there is no other flag."""
        known = parser().assemble_argument_collection()
        flags = {name for argument in known for name in argument.names if name.startswith("--")}

        negative = {"--empty-peer", "--no-require-key"}

        assert {f"--{field.name.replace('_', '-')}" for field in fields(WorkerConfig)} == flags - negative

    @pytest.mark.parametrize("field", SINGLE)
    def test_every_field_has_its_variable(self, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """`PACKRELAY_` and a field's name set the field."""
        given = {"role": "context", "log_level": "debug", "advertise_url": "http://a", "engine_option": "a=b"}
        monkeypatch.setenv(f"PACKRELAY_{field.upper()}", given.get(field, "7"))

        assert getattr(configured(), field) != getattr(WorkerConfig(), field)

    def test_a_flag_wins_over_its_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What stands on the command line counts."""
        monkeypatch.setenv("PACKRELAY_PORT", "1")

        assert configured("--port", "2").port == 2

    def test_every_field_says_what_it_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The help has a sentence for each flag."""
        parser()(["--help"])
        help_ = capsys.readouterr().out

        assert all(f"--{field.name.replace('_', '-')}" in help_ for field in fields(WorkerConfig))

    def test_help_is_answered_with_status_0(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Asking for help starts nothing."""
        assert main(["--help"]) == 0
        assert "packrelay-worker" in capsys.readouterr().out


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            (["--port", "65536"], "--port"),
            (["--role", "prefill"], "--role"),
            (["--engine-option", "fast"], "--engine-option"),
            (["--engine-option", "=1"], "--engine-option"),
            (["--grpc-tls-cert", "a"], "--grpc-tls-key"),
            (["--grpc-tls-ca", "a"], "--grpc-tls-cert"),
            (["--tls-cert", "a"], "--tls-key"),
            (["--tls-ca", "a"], "--tls-cert"),
            (["--require-key"], "--internal-key"),
            (["--internal-key", ""], "--internal-key"),
            (["--advertise-url", "tcp://a:1"], "--advertise-url"),
            (["--cluster-uri", "etcd://a:1"], "--role"),
            (["--cluster-uri", "http://a:1", "--role", "context"], "--cluster-uri"),
            (
                ["--cluster-uri", "etcd://a:1", "--role", "context", "--heartbeat-interval", "10"],
                "--heartbeat-interval",
            ),
            (
                ["--cluster-uri", "etcd://a:1", "--role", "context", "--advertise-url", "https://a:1"],
                "--advertise-url",
            ),
            (["--handoff-seconds", "0"], "--handoff-seconds"),
            (["--threads", "0"], "--threads"),
            (["--grace", "-1"], "--grace"),
            (["--no-such-flag"], "--no-such-flag"),
        ],
    )
    def test_a_wrong_value_names_its_flag(
        self, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Whatever is wrong, the message names the flag."""
        assert named in refused(capsys, *arguments)

    def test_an_unknown_engine_is_refused_with_the_known_ones(self, capsys: pytest.CaptureFixture[str]) -> None:
        """An engine that does not exist ends the process with status 1 and a list."""
        assert main(["--engine", "abacus", "--port", "0", "--log-level", "error"]) == 1
        assert "known are llama_cpp, scripted" in capsys.readouterr().err

    def test_a_taken_port_is_refused(self, capsys: pytest.CaptureFixture[str], unused_tcp_port: int) -> None:
        """A port that cannot be had ends the process before a model is loaded."""
        with bind("127.0.0.1", unused_tcp_port) as taken:
            taken.listen()
            status = main(["--engine", "scripted", "--port", str(unused_tcp_port), "--log-level", "error"])

        assert status == 1
        assert f"cannot listen on 127.0.0.1:{unused_tcp_port}" in capsys.readouterr().err


class TestDerived:
    def test_the_secret_is_masked(self) -> None:
        """The key shows neither in what is logged nor in the value's own text."""
        config = configured("--internal-key", "s3cret")

        assert "s3cret" not in f"{config} {config.masked()}"
        assert config.masked()["internal_key"] == "***"

    def test_no_secret_shows_as_none(self) -> None:
        """Without a key the log says so."""
        assert configured().masked()["internal_key"] is None

    def test_engine_options_are_one_map(self) -> None:
        """Options and the flags that are options too reach the engine together; the flags win."""
        config = configured("--engine-option", "a=b=c", "--engine-option", "slots=9", "--slots", "2", "--threads", "1")

        assert config.engine_options() == {"a": "b=c", "slots": "2", "threads": "1"}

    @pytest.mark.parametrize(
        ("arguments", "url"),
        [
            (["--host", "10.0.0.1"], "http://10.0.0.1:81"),
            (["--host", "::1"], "http://[::1]:81"),
            (["--advertise-url", "https://worker.example/a/"], "https://worker.example/a"),
        ],
    )
    def test_the_own_address_is_host_and_real_port(self, arguments: list[str], url: str) -> None:
        """Other workers are told the host and the port listened on, or what the operator says."""
        assert configured(*arguments).base_url(81) == url

    def test_a_wildcard_is_advertised_as_this_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody can connect to 0.0.0.0, so the machine's name stands for it."""
        monkeypatch.setattr("socket.gethostname", lambda: "box")

        assert configured("--host", "0.0.0.0").base_url(81) == "http://box:81"
