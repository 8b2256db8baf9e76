"""What do 64 streams of 100 tokens a second take of a worker's core, the engine's own work apart?

The engine is the scripted one: it says tokens from a list. Typed decode, output work, SSE and the socket are what is measured.
"""

from benchmarks.contenders import PACKRELAY_WORKER
from benchmarks.load.plan import Load
from benchmarks.question import Question, below
from benchmarks.questions.paced_streams import share
from benchmarks.setting import Setting

_LOAD = Load(port=0, connections=64, events=-1, warm=1.5, seconds=4.0)

QUESTION = Question(
    name="worker_streams",
    title="a worker's front end, 64 streams at 100 tokens/s",
    settings={PACKRELAY_WORKER: Setting(contender=PACKRELAY_WORKER, workers=(), load=_LOAD)},
    targets=(below(PACKRELAY_WORKER, 50.0, share, "50 % of a core"),),
    figure=share,
    unit="% core",
)
