"""packrelay-up: a local fleet as child processes, for one machine. Imports no worker: it starts programs.

Workers first, all at once; the gateway when they are ready. Stopped in the other order. Whatever way this process ends,
its children end too: they watch a pipe that the kernel closes with it (`schemas.origin`).
"""

import asyncio
import json
import os
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version

from cyclopts import App
from cyclopts.config import Env

from gateway.child import Child
from gateway.launch_plan import CommandOf, LaunchConfig, LaunchPlan, Program, launch_plan, own_command, url_of
from gateway.launch_ports import PortRefused
from gateway.loopback import first_model, is_ready, wants_key
from schemas.origin import LIFELINE_VARIABLE

ENVIRONMENT_PREFIX = "PACKRELAY_"
KEY_VARIABLE = "PACKRELAY_INTERNAL_KEY"

POLL_S = 0.1
PROGRESS_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long packrelay-up waits, in seconds."""

    until_ready: float = 600.0
    """From the start of a child until it is ready; loading a large model is slow."""

    beyond_grace: float = 20.0
    """What a program may need to end in order beyond its grace; several gateway processes give one another 15 s."""


_PATIENCE = Patience()


class _FleetFailed(Exception):
    """The fleet cannot go on. The message says which child, and why."""


class _StopAsked(Exception):
    """Ctrl-C or SIGTERM."""


def main(
    arguments: Sequence[str] | None = None,
    *,
    command_of: CommandOf = own_command,
    patience: Patience = _PATIENCE,
) -> int:
    """Start the fleet and keep it until Ctrl-C or SIGTERM (status 0), or until a child dies (status 1)."""
    config = _parser()(arguments)
    if config is None:  # --help or --version, which have been answered.
        return 0
    try:
        plan = launch_plan(config, command_of)
    except PortRefused as refusal:
        _complain(str(refusal))
        return 1
    return asyncio.run(run(plan, patience))


def _parser() -> App:
    app = App(
        name="packrelay-up",
        help="Start a local fleet: workers and a gateway, as child processes.",
        version=lambda: version("packrelay"),
        config=Env(ENVIRONMENT_PREFIX, command=False),
        result_action="return_value",
    )

    @app.default
    def _configured(config: LaunchConfig = _DEFAULT) -> LaunchConfig:
        return config

    return app


_DEFAULT = LaunchConfig()


async def run(plan: LaunchPlan, patience: Patience) -> int:
    """Bring the fleet up, wait, take it down in order. Answers the exit status."""
    signals = _Signals()
    children: list[Child] = []
    status = 0
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(signals.raise_when_asked(), name="signals")
            await _bring_up(plan, patience, group, children)
    except* _StopAsked:
        pass
    except* _FleetFailed as failed:
        status = 1
        for failure in failed.exceptions:
            _complain(str(failure))
    finally:
        await _take_down(children, plan, patience, signals.hurry)
    return status


class _Signals:
    """The first SIGINT or SIGTERM asks for an orderly stop, the second one for a quick one."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.hurry if self.asked.is_set() else self.asked).set()

    async def raise_when_asked(self) -> None:
        await self.asked.wait()
        raise _StopAsked


async def _bring_up(plan: LaunchPlan, patience: Patience, group: asyncio.TaskGroup, children: list[Child]) -> None:
    """Workers first, then the gateway, so that its first look at them finds them ready."""
    environment = _environment_of_children()
    for programs in (plan.workers, [plan.gateway]):
        for program in programs:
            await _start(program, environment, group, children)
        await _all_ready(programs, patience)
    await _announce(plan)


def _environment_of_children() -> Mapping[str, str]:
    """Ours, without the variables that configured us (children get flags), and with what this run decided."""
    consumed = {ENVIRONMENT_PREFIX + field.name.upper() for field in fields(LaunchConfig)}
    inherited = {name: value for name, value in os.environ.items() if name not in consumed}
    return inherited | {KEY_VARIABLE: secrets.token_hex(32), LIFELINE_VARIABLE: "1"}


async def _start(
    program: Program, environment: Mapping[str, str], group: asyncio.TaskGroup, children: list[Child]
) -> None:
    try:
        child = await Child.start(program.name, program.command, environment)
    except OSError as failure:
        raise _FleetFailed(f"The {program.name} could not be started: {failure}.") from failure
    children.append(child)
    group.create_task(_fail_when_ended(child), name=f"watch {program.name}")
    _say(f"starting the {program.name} on {url_of(program.host, program.port)}")


async def _fail_when_ended(child: Child) -> None:
    sentence = f"The {child.name} {await child.ended()}."
    raise _FleetFailed("\n  ".join([sentence + (" Its last lines:" if child.tail else ""), *child.tail]))


async def _all_ready(programs: Sequence[Program], patience: Patience) -> None:
    started = time.monotonic()
    waiting = list(programs)
    report_at = PROGRESS_S
    while True:
        ready = [program for program in waiting if await is_ready(program.host, program.port)]
        waiting = [program for program in waiting if program not in ready]
        elapsed = time.monotonic() - started
        for program in ready:
            _say(f"the {program.name} is ready after {elapsed:.1f} s")
        if not waiting:
            return
        names = " and the ".join(program.name for program in waiting)
        if elapsed > patience.until_ready:
            raise _FleetFailed(f"The {names} did not become ready in {patience.until_ready:.0f} s.")
        if elapsed > report_at:
            report_at += PROGRESS_S
            _say(f"still loading after {elapsed:.0f} s: the {names}")
        await asyncio.sleep(POLL_S)  # Another process is ready when it says so, and it says so only when asked.


async def _announce(plan: LaunchPlan) -> None:
    gateway = plan.gateway
    url = url_of(gateway.host, gateway.port)
    # A gateway with API keys does not tell us; then its workers do.
    model = await first_model((program.host, program.port) for program in (gateway, *plan.workers))
    needs_key = await wants_key(gateway.host, gateway.port)
    key = " -H 'Authorization: Bearer <one of your keys>'" if needs_key else ""
    question = {
        "model": model,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 32,
        "temperature": 0,
    }
    body = shlex.quote(json.dumps(question))
    _say(f"packrelay is ready on {url}\n")
    _say(f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d {body}\n")
    _say("Ctrl-C stops it.")


async def _take_down(children: Sequence[Child], plan: LaunchPlan, patience: Patience, hurry: asyncio.Event) -> None:
    """Gateway first, so that nothing new reaches the workers and its streams can finish; then all workers at once."""
    workers, seconds = len(plan.workers), plan.grace + patience.beyond_grace
    for group in (children[workers:], children[:workers]):
        running = [child for child in group if child.is_running]
        for child in running:
            _say(f"stopping the {child.name}, which has {plan.grace:g} s to finish what it does")
        await asyncio.gather(*(child.stop(seconds, hurry) for child in running))


def _say(line: str) -> None:
    print(line, flush=True)


def _complain(line: str) -> None:
    print(f"packrelay-up: {line}", file=sys.stderr, flush=True)
