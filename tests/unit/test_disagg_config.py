"""The YAML of `trtllm-serve disaggregated` is read as it is: acted on, listed, or refused by path."""

from pathlib import Path

import pytest

from gateway.cli import main, orchestrator_of, parse
from gateway.config import GatewayConfig
from gateway.disagg_config import DisaggConfigRefused, read_disagg_config
from gateway.member import Role
from gateway.routing.least_loaded import LeastLoaded
from gateway.routing.round_robin import RoundRobin

TWO_AND_ONE = """
context_servers:
  num_instances: 2
  urls: ["c1:8001", "c2:8002"]
generation_servers:
  num_instances: 1
  urls: ["g1:8003"]
"""
CLUSTER = """
disagg_cluster:
  cluster_uri: etcd://e1:2379,e2:2379
  cluster_name: mine
  minimal_instances: {context_servers: 2, generation_servers: 3}
  heartbeat_interval_sec: 5
  inactive_timeout_sec: 7
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is."""
    return tmp_path / "disagg_config.yaml"


def parsed(path: Path, text: str, *arguments: str) -> GatewayConfig:
    """The settings that a file and a command line make."""
    path.write_text(text)
    config = parse(["--config", str(path), *arguments])
    assert config is not None
    return config


def refusal(path: Path, text: str, fallback: str | None = None) -> str:
    """What is said of a file that cannot be used."""
    path.write_text(text)
    with pytest.raises(DisaggConfigRefused) as caught:
        read_disagg_config(path, fallback)
    return str(caught.value)


class TestActedOn:
    def test_urls_become_workers(self, path: Path) -> None:
        """Each section's urls are the workers of its leg."""
        config = parsed(path, TWO_AND_ONE)

        assert config.context_worker == ("http://c1:8001", "http://c2:8002")
        assert config.generation_worker == ("http://g1:8003",)

    @pytest.mark.parametrize(
        ("line", "setting", "value"),
        [
            ("hostname: 0.0.0.0", "host", "0.0.0.0"),
            ("port: 8333", "port", 8333),
            ("max_retries: 3", "retries", 3),
            ("node_id: 17", "node_id", 17),
            ("schedule_style: generation_first", "schedule_style", "generation_first"),
            ("allow_request_chat_template: true", "allow_request_chat_template", True),
            ("gen_strip_message_history: true", "strip_message_history", True),
            ("server_keep_alive_timeout: 10", "keep_alive_timeout", 10),
            ("internal_request_auth_key: hush", "internal_key", "hush"),
            ("num_workers: 1", "processes", 1),
            ("conditional_disagg_config: {max_local_prefill_length: 64}", "max_local_prefill_length", 64),
        ],
    )
    def test_key_is_one_of_our_settings(self, line: str, setting: str, value: object, path: Path) -> None:
        """What both have is one thing by two names, and is not said to be ignored."""
        config = parsed(path, f"{line}\n{TWO_AND_ONE}")

        assert getattr(config, setting) == value
        assert read_disagg_config(path).ignored == ()

    def test_cluster_is_looked_for_in_etcd(self, path: Path) -> None:
        """`disagg_cluster` names etcd, the cluster, and how many workers there must be."""
        config = parsed(path, CLUSTER)

        assert (config.cluster_uri, config.cluster_name) == ("etcd://e1:2379,e2:2379", "mine")
        assert (config.min_context_workers, config.min_generation_workers) == (2, 3)
        assert config.inactive_timeout == 7.0

    def test_urls_beside_a_cluster_are_ignored(self, path: Path) -> None:
        """With a cluster the urls change nothing, as in the orchestrator whose file it is."""
        config = parsed(path, TWO_AND_ONE + CLUSTER)

        assert config.workers() == ()
        assert "context_servers.urls" in read_disagg_config(path).ignored

    def test_each_section_has_its_router(self, path: Path) -> None:
        """A router is chosen by its section, or by the file's top for both."""
        per_section = TWO_AND_ONE.replace("num_instances: 1", "router: {type: load_balancing}")
        fleet = orchestrator_of(parsed(path, per_section, "--router", "round_robin")).fleet
        inherited = orchestrator_of(parsed(path, "router: {type: round_robin}\n" + TWO_AND_ONE)).fleet

        assert isinstance(fleet._policies[Role.GENERATION], LeastLoaded)
        assert isinstance(fleet._policies[Role.CONTEXT], RoundRobin)
        assert isinstance(inherited._policies[Role.CONTEXT], RoundRobin)

    def test_a_flag_wins_over_the_file_and_so_does_a_variable(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The file is what the command line and the environment leave open."""
        monkeypatch.setenv("PACKRELAY_RETRIES", "5")
        config = parsed(
            path, "port: 1\nmax_retries: 2\n" + TWO_AND_ONE, "--port", "9", "--generation-worker", "http://a:1"
        )

        assert (config.port, config.retries, config.generation_worker) == (9, 5, ("http://a:1",))
        assert config.context_worker == ("http://c1:8001", "http://c2:8002")

    def test_the_secret_of_the_file_is_not_shown(self, path: Path) -> None:
        """A key from the file is masked like one from a flag."""
        config = parsed(path, "internal_request_auth_key: hush\n" + TWO_AND_ONE)

        assert "hush" not in f"{config!r}{config.masked()}"


class TestIgnored:
    def test_what_changes_nothing_is_listed_by_path(self, path: Path) -> None:
        """Arguments of the workers' LLM, metrics files, and the like are named, each once."""
        path.write_text(
            "model: TinyLlama\nbackend: pytorch\nperf_metrics_max_requests: 10\nreturn_perf_metrics: true\n"
            + TWO_AND_ONE.replace("num_instances: 1", "tensor_parallel_size: 2\n  backend: pytorch")
            + "otlp_config: {otlp_traces_endpoint: 'http://o:1'}\ndisagg_coordinator_url: http://x:1\n"
        )

        assert read_disagg_config(path).ignored == (
            "perf_metrics_max_requests",
            "otlp_config",
            "disagg_coordinator_url",
            "return_perf_metrics",
            "model",
            "backend",
            "generation_servers.tensor_parallel_size",
            "generation_servers.backend",
        )

    def test_arguments_of_a_router_are_listed(self, path: Path) -> None:
        """A router that exists does not have stock's knobs."""
        path.write_text(TWO_AND_ONE.replace("num_instances: 1", "router: {type: load_balancing, use_tokens: true}"))

        assert read_disagg_config(path).ignored == ("generation_servers.router.use_tokens",)

    def test_a_missing_router_may_be_replaced(self, path: Path) -> None:
        """With a fallback named, the file is used, and the router is said not to be."""
        text = TWO_AND_ONE.replace("num_instances: 1", "router: {type: kv_cache_aware, load_weight: 0.5}")
        config = parsed(path, text, "--router-fallback", "round_robin")

        assert config.generation_router == "round_robin"
        assert read_disagg_config(path, "round_robin").ignored == (
            "generation_servers.router.load_weight",
            "generation_servers.router.type",
        )


class TestRefused:
    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("backend: a\ncontext_servers: {backend: b}", "context_servers.backend: 'b' conflicts with 'a'"),
            ("context_servers: {num_instances: 2, urls: ['a:1']}", "context_servers.num_instances: 2 conflicts"),
            ("context_servers: {num_instances: many}", "context_servers.num_instances: expected"),
            ("context_servers: {router: {type: dice}}", "context_servers.router.type: 'dice' is no router"),
            ("context_servers: {router: {type: round_robin, x: 1}}", "context_servers.router.x: "),
            ("generation_servers: {router: {type: kv_cache_aware}}", "generation_servers.router.type: the router kv_"),
            ("router: {type: conversation}", "router.type: the router conversation does not exist here yet"),
            ("disagg_cluster: {cluster_uri: 'etcd://a:1', ttl: 1}", "disagg_cluster.ttl: there is no such key"),
            ("disagg_cluster: {cluster_name: a}", "disagg_cluster.cluster_uri: is missing"),
            (
                "disagg_cluster: {cluster_uri: 'etcd://a:1', minimal_instances: {context: 1}}",
                "disagg_cluster.minimal_instances.context: there is no such key",
            ),
            ("conditional_disagg_config: {max: 1}", "conditional_disagg_config.max: there is no such key"),
            ("schedule_style: both", "schedule_style: invalid enum value 'both'"),
            ("node_id: 256", "node_id: expected `int` <= 255"),
            ("allow_request_chat_template: 1", "allow_request_chat_template: expected `bool"),
            ("internal_request_auth_key: ''", "internal_request_auth_key: expected"),
            ("num_workers: 0", "num_workers: expected `int` >= 1"),
            ("port: 1\nport: 2", "the key 'port' stands twice"),
            ("- a", "the file: expected a map"),
            ("a: [", "is not YAML"),
        ],
    )
    def test_what_cannot_be_used_is_refused_by_path(self, text: str, named: str, path: Path) -> None:
        """The message names the file, the key's path, and what is wrong with it."""
        said = refusal(path, text)

        assert said.startswith(str(path))
        assert named in said

    def test_a_refused_file_ends_the_program(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Status 2, and the sentence on stderr."""
        path.write_text("router: {type: conversation}")

        assert main(["--config", str(path)]) == 2
        assert "--router-fallback names another" in capsys.readouterr().err

    def test_a_file_that_is_not_there_ends_the_program(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The file is named."""
        assert main(["--config", str(path)]) == 2
        assert f"{path} cannot be read" in capsys.readouterr().err

    def test_a_cluster_inside_the_orchestrator_is_refused(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Registrations are kept in etcd only; the message says where."""
        path.write_text(CLUSTER.replace("etcd://e1:2379,e2:2379", "http://here:8000"))

        assert main(["--config", str(path)]) == 2
        assert "Workers register in etcd" in " ".join(capsys.readouterr().err.replace("│", " ").split())
