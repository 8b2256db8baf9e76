"""How does what streams take of a core grow with their number, at 30 events a second each?

docs/scaling.md plots what came out.
"""

from benchmarks.contenders import PACKRELAY
from benchmarks.load.plan import Load
from benchmarks.question import Question
from benchmarks.questions.paced_streams import share
from benchmarks.setting import Setting

_STREAM = ("--kind", "packrelay", "--answer", "stream", "--per-second", "30", "--chunks", "900")
_STREAMS = (100, 250, 500, 1000)


def _of(count: int) -> Setting:
    load = Load(port=0, mode="streams", connections=count, events=1, warm=1.0, seconds=3.0)
    return Setting(contender=PACKRELAY, workers=(_STREAM,), load=load)


QUESTION = Question(
    name="growth_streams",
    title="growth with streams at 30 chunks/s",
    settings={f"{count} streams": _of(count) for count in _STREAMS},
    targets=(),
    figure=share,
    unit="% core",
)
