"""Does a second process cost anything per request?

How connections split, and that metrics add up, is what tests/unit/test_supervisor.py says.
"""

from benchmarks.contenders import PACKRELAY, PACKRELAY_TWICE
from benchmarks.load.plan import Load
from benchmarks.question import Question, ratio
from benchmarks.setting import Setting

_LOAD = Load(port=0, connections=32)
_OURS = (("--kind", "packrelay"),)

QUESTION = Question(
    name="two_processes",
    title="two processes against one, small chat",
    settings={
        PACKRELAY_TWICE: Setting(contender=PACKRELAY_TWICE, workers=_OURS, load=_LOAD),
        PACKRELAY: Setting(contender=PACKRELAY, workers=_OURS, load=_LOAD),
    },
    targets=(ratio(PACKRELAY_TWICE, PACKRELAY, 1.05),),
)
