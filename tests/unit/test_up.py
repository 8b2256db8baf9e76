"""packrelay-up with stand-ins for its children: real processes, real signals."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gateway.launch_plan import LaunchConfig, launch_plan, own_command

EXIT_TIMEOUT_S = 20.0

Entry = dict[str, Any]  # A line of the journal: what JSON holds.


class Fleet:
    """packrelay-up in a process and a session of its own, on free ports."""

    def __init__(self, folder: Path, *flags: str, **environment: str) -> None:
        self._journal = folder / "journal"
        self._errors = folder / "stderr"
        self.go = folder / "go"
        settings = {"STAND_IN_JOURNAL": str(self._journal), "STAND_IN_GO": str(self.go), **environment}
        free_ports = {"PACKRELAY_PORT": "0", "PACKRELAY_WORKER_PORT": "0"}
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.unit.stand_in_fleet", *flags],
                env=os.environ | free_ports | settings,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.said = ""

    def until_said(self, words: str) -> None:
        """Read on until a line with these words is out."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return
        raise AssertionError(f"ended without saying {words!r}: {self.said}{self.errors}")

    def exit_status(self) -> int:
        """Wait for the end."""
        out, _ = self.process.communicate(timeout=EXIT_TIMEOUT_S)
        self.said += out
        return self.process.returncode

    @property
    def errors(self) -> str:
        """What is on stderr by now."""
        return self._errors.read_text()

    def journal(self, what: str, package: str | None = None) -> list[Entry]:
        """The entries of this kind, oldest first."""
        return [entry for entry in self.entries() if entry["what"] == what and package in (None, entry["package"])]

    def entries(self) -> list[Entry]:
        """All that the stand-ins have noted."""
        lines = self._journal.read_text().splitlines() if self._journal.exists() else []
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        """Kill packrelay-up if it still runs; its children follow."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=EXIT_TIMEOUT_S)


FleetOf = Callable[..., Fleet]


@pytest.fixture
def fleet_of(tmp_path: Path) -> Iterator[FleetOf]:
    """Start a fleet that ends with the test."""
    fleets: list[Fleet] = []

    def start(*flags: str, **environment: str) -> Fleet:
        fleets.append(Fleet(tmp_path, *flags, **environment))
        return fleets[-1]

    yield start
    for fleet in fleets:
        fleet.end()


def flag(entry: Entry, name: str) -> str:
    """The value of a flag that a stand-in was started with."""
    return str(entry["flags"][entry["flags"].index(name) + 1])


class TestLaunch:
    def test_default_is_one_context_and_one_generation_worker(self, fleet_of: FleetOf) -> None:
        """Without counts there is one worker for each leg, and the gateway is told which is which."""
        fleet = fleet_of()
        fleet.until_said("packrelay is ready")
        first, second = fleet.journal("started", "worker")
        urls = {flag(entry, "--role"): f"http://127.0.0.1:{flag(entry, '--port')}" for entry in (first, second)}
        (gateway,) = fleet.journal("started", "gateway")

        assert flag(gateway, "--context-worker") == urls["context"]
        assert flag(gateway, "--generation-worker") == urls["generation"]

    def test_workers_flag_means_aggregated(self, fleet_of: FleetOf) -> None:
        """With --workers every worker does both legs."""
        fleet = fleet_of("--workers", "2", "--engine", "scripted", "--model", "m")
        fleet.until_said("packrelay is ready")
        workers = fleet.journal("started", "worker")
        (gateway,) = fleet.journal("started", "gateway")

        assert [flag(worker, "--role") for worker in workers] == ["both", "both"]
        assert {(flag(worker, "--engine"), flag(worker, "--model")) for worker in workers} == {("scripted", "m")}
        assert gateway["flags"].count("--worker") == 2

    def test_ready_message_has_a_command_to_paste(self, fleet_of: FleetOf) -> None:
        """The curl line asks the gateway for the model it really serves, quoted for the shell."""
        fleet = fleet_of()
        fleet.until_said("curl")
        (gateway,) = fleet.journal("started", "gateway")

        printed = subprocess.check_output(["sh", "-c", f"printf '%s\\n' {fleet.said.splitlines()[-1]}"], text=True)
        assert f"http://127.0.0.1:{flag(gateway, '--port')}/v1/chat/completions" in printed
        assert json.loads(printed.splitlines()[-1])["model"] == "stand-in's"

    def test_gateway_with_keys_counts_as_ready(self, fleet_of: FleetOf) -> None:
        """A gateway that wants a key for its models is ready; the command to paste then asks for one."""
        fleet = fleet_of(STAND_IN_GATEWAY="locked")
        fleet.until_said("curl")

        assert "stand-in" in fleet.said
        assert "'Authorization: Bearer <one of your keys>'" in fleet.said

    def test_children_share_one_secret(self, fleet_of: FleetOf) -> None:
        """Each run makes a key of its own and hands it to every child."""
        fleet = fleet_of(PACKRELAY_INTERNAL_KEY="from outside")
        fleet.until_said("packrelay is ready")
        keys = {entry["environment"]["PACKRELAY_INTERNAL_KEY"] for entry in fleet.journal("started")}

        (key,) = keys
        assert len(bytes.fromhex(key)) == 32

    def test_variables_configure_and_are_not_passed_on(self, fleet_of: FleetOf) -> None:
        """A PACKRELAY_ variable is as good as its flag, and children see the flags only."""
        fleet = fleet_of(PACKRELAY_WORKERS="1", PACKRELAY_ENGINE="scripted")
        fleet.until_said("packrelay is ready")
        (worker,) = fleet.journal("started", "worker")

        assert flag(worker, "--engine") == "scripted"
        assert not {"PACKRELAY_WORKERS", "PACKRELAY_ENGINE"} & worker["environment"].keys()

    def test_loading_is_shown(self, fleet_of: FleetOf) -> None:
        """While children load, packrelay-up says which and for how long."""
        fleet = fleet_of("--workers", "1", STAND_IN_WORKER="loading")
        fleet.until_said("still loading after 2 s: the worker")
        fleet.go.touch()

        fleet.until_said("packrelay is ready")

    def test_grpc_ports_are_a_thousand_higher(self) -> None:
        """Over the gRPC link each worker is told its second port; the gateway still gets HTTP addresses."""
        plan = launch_plan(LaunchConfig(link="grpc", workers=1, port=0, worker_port=0), lambda _, flags: flags)
        (worker,) = plan.workers

        assert worker.command[worker.command.index("--grpc-port") + 1] == str(worker.port + 1000)
        assert f"http://127.0.0.1:{worker.port}" in plan.gateway.command

    def test_workers_take_states_from_each_other_only(self) -> None:
        """Each is told the addresses of the whole fleet."""
        plan = launch_plan(LaunchConfig(port=0, worker_port=0), lambda _, flags: flags)
        fleet = [f"127.0.0.1:{worker.port}" for worker in plan.workers]

        for worker in plan.workers:
            flags = list(worker.command)
            assert [flags[at + 1] for at, flag in enumerate(flags) if flag == "--peer"] == fleet

    def test_all_programs_have_one_grace(self) -> None:
        """Whoever stops them waits as long as they may take, and so do they."""
        plan = launch_plan(LaunchConfig(port=0, worker_port=0, grace=60), lambda _, flags: flags)

        assert plan.grace == 60
        for program in (*plan.workers, plan.gateway):
            assert program.command[list(program.command).index("--grace") + 1] == "60"

    def test_real_programs_are_our_entry_modules(self) -> None:
        """Children run this Python with our packages, whatever the working directory holds."""
        assert own_command("worker", ["--port", "1"]) == [sys.executable, "-P", "-m", "worker.entry", "--port", "1"]

    def test_every_field_has_a_flag_and_a_variable(self) -> None:
        """The help lists the flag and the variable of each field of the config."""
        shown = subprocess.check_output(
            [sys.executable, "-m", "tests.unit.stand_in_fleet", "--help"],
            env=os.environ | {"COLUMNS": "200"},
            text=True,
        )

        for field in fields(LaunchConfig):
            assert f"--{field.name.replace('_', '-')} " in shown
            assert f"PACKRELAY_{field.name.upper()}]" in shown


class TestRefusal:
    def test_port_in_use_is_said_before_anything_starts(self, fleet_of: FleetOf) -> None:
        """A taken port is named with the flag that changes it, and no child was started."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            fleet = fleet_of("--worker-port", str(port))

            assert fleet.exit_status() == 1
        assert f"port {port}" in fleet.errors
        assert "--worker-port" in fleet.errors
        assert fleet.entries() == []

    def test_port_asked_for_twice_is_refused(self, fleet_of: FleetOf, unused_tcp_port: int) -> None:
        """The gateway and a worker cannot have the same port."""
        fleet = fleet_of("--port", str(unused_tcp_port), "--worker-port", str(unused_tcp_port))

        assert fleet.exit_status() == 1
        assert f"Port {unused_tcp_port} is asked for by the gateway and by the context worker" in fleet.errors

    def test_port_past_the_last_one_is_refused(self, fleet_of: FleetOf) -> None:
        """Workers whose ports would not exist are refused."""
        fleet = fleet_of("--link", "grpc", "--worker-port", "65000")

        assert fleet.exit_status() == 1
        assert "66000" in fleet.errors

    def test_two_modes_are_refused(self, fleet_of: FleetOf) -> None:
        """Aggregated and disaggregated counts exclude each other."""
        fleet = fleet_of("--workers", "1", "--context-workers", "1")

        assert fleet.exit_status() == 2
        assert "--workers" in fleet.errors


class TestStop:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_signal_stops_everything_in_order(self, fleet_of: FleetOf, number: signal.Signals) -> None:
        """The gateway has ended before a worker is told to; the status is 0."""
        fleet = fleet_of()
        fleet.until_said("packrelay is ready")
        fleet.process.send_signal(number)

        assert fleet.exit_status() == 0
        ends = [(entry["package"], entry["what"]) for entry in fleet.entries() if entry["what"] != "started"]
        assert ends[:2] == [("gateway", "SIGTERM"), ("gateway", "ended")]
        assert ends.count(("worker", "ended")) == 2

    def test_signal_to_the_terminal_reaches_only_the_parent(self, fleet_of: FleetOf) -> None:
        """A Ctrl-C, which goes to the whole process group, interrupts no child."""
        fleet = fleet_of()
        fleet.until_said("packrelay is ready")
        os.killpg(fleet.process.pid, signal.SIGINT)

        assert fleet.exit_status() == 0
        assert fleet.journal("SIGINT") == []

    def test_signal_while_loading_stops(self, fleet_of: FleetOf) -> None:
        """A Ctrl-C before the fleet is ready is an orderly end, too."""
        fleet = fleet_of("--workers", "1", STAND_IN_WORKER="loading")
        fleet.until_said("starting the worker")
        fleet.process.send_signal(signal.SIGINT)

        assert fleet.exit_status() == 0
        assert "stopping the worker" in fleet.said

    def test_second_signal_skips_the_wait(self, fleet_of: FleetOf) -> None:
        """A child that does not stop is killed at once on the second Ctrl-C."""
        fleet = fleet_of(STAND_IN_GATEWAY="deaf")
        fleet.until_said("packrelay is ready")
        fleet.process.send_signal(signal.SIGINT)
        fleet.until_said("stopping the gateway")
        fleet.process.send_signal(signal.SIGINT)

        assert fleet.exit_status() == 0
        assert fleet.journal("ended", "gateway") == []

    def test_deaf_child_is_killed_after_the_grace(self, fleet_of: FleetOf) -> None:
        """A child that ignores SIGTERM for longer than the grace is killed, and the others still stop in order."""
        fleet = fleet_of("--grace", "0.1", STAND_IN_GATEWAY="deaf", STAND_IN_MARGIN="0.1")
        fleet.until_said("packrelay is ready")
        fleet.process.send_signal(signal.SIGINT)

        assert fleet.exit_status() == 0
        assert len(fleet.journal("ended", "worker")) == 2

    def test_children_do_not_outlive_their_parent(self, fleet_of: FleetOf) -> None:
        """When packrelay-up is killed, its children notice and end."""
        fleet = fleet_of()
        fleet.until_said("packrelay is ready")
        watched = [os.pidfd_open(entry["pid"]) for entry in fleet.journal("started")]
        fleet.process.kill()
        for child in watched:
            ended, _, _ = select.select([child], [], [], EXIT_TIMEOUT_S)
            os.close(child)

            assert ended == [child]


class TestDeath:
    def test_refusing_child_is_named_with_its_words(self, fleet_of: FleetOf) -> None:
        """A child that exits while starting is named with its status and its last words; the status is 1."""
        fleet = fleet_of(STAND_IN_GATEWAY="refuses")

        assert fleet.exit_status() == 1
        assert "The gateway exited with status 3. Its last lines:\n  the stand-in will not" in fleet.errors
        assert len(fleet.journal("ended", "worker")) == 2

    def test_killed_worker_ends_the_fleet(self, fleet_of: FleetOf) -> None:
        """A child that is killed later is named with the signal, and the rest is stopped."""
        fleet = fleet_of()
        fleet.until_said("packrelay is ready")
        (context, generation) = fleet.journal("started", "worker")
        victim = context if flag(context, "--role") == "context" else generation
        os.kill(victim["pid"], signal.SIGKILL)

        assert fleet.exit_status() == 1
        assert "The context worker was killed by SIGKILL." in fleet.errors
        assert [entry["package"] for entry in fleet.journal("ended")] == ["gateway", "worker"]

    def test_child_that_never_loads_ends_the_fleet(self, fleet_of: FleetOf) -> None:
        """Waiting for a child has a limit."""
        fleet = fleet_of("--workers", "1", STAND_IN_WORKER="loading", STAND_IN_PATIENCE="0.3")

        assert fleet.exit_status() == 1
        assert "The worker did not become ready" in fleet.errors
