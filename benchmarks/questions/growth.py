"""How does the cost of a request grow with its body, with the number of workers and with that of processes?

The figure is processor time per request; docs/scaling.md plots what came out. All processes share one core here: what more of them
cost is shown, not what they gain.
"""

from benchmarks.contenders import PACKRELAY, PACKRELAY_FOUR_TIMES, PACKRELAY_TWICE
from benchmarks.load.plan import Load
from benchmarks.question import Question
from benchmarks.setting import Setting

_OURS = ("--kind", "packrelay")
_SIZES = {"1 KB": 1_000, "10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000, "8 MB": 8_000_000}
_WORKERS = (1, 4, 16)
_PROCESSES = {1: PACKRELAY, 2: PACKRELAY_TWICE, 4: PACKRELAY_FOUR_TIMES}


def _of_size(size: int, kind: str) -> Setting:
    connections = 16 if size < 1_000_000 else 4
    return Setting(
        contender=PACKRELAY, workers=(("--kind", kind),), load=Load(port=0, connections=connections, size=size)
    )


def _of_workers(count: int) -> Setting:
    return Setting(contender=PACKRELAY, workers=(_OURS,) * count, load=Load(port=0, connections=16))


def _of_processes(count: int) -> Setting:
    return Setting(contender=_PROCESSES[count], workers=(_OURS,), load=Load(port=0, connections=16 * count))


QUESTION = Question(
    name="growth",
    title="growth with body size and workers",
    settings={
        **{f"{name}, deferred": _of_size(size, "packrelay") for name, size in _SIZES.items()},
        **{f"{name}, plain": _of_size(size, "stock") for name, size in _SIZES.items()},
        **{f"{count} workers": _of_workers(count) for count in _WORKERS},
        **{f"{count} processes": _of_processes(count) for count in _PROCESSES},
    },
    targets=(),
)
