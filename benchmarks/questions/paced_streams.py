"""What do 1,000 streams of 30 events a second take of a core, and how late do their events come?

Every stream lasts longer than the measurement, so all 1,000 are open throughout; each event carries the time it was written at.
"""

from benchmarks.contenders import DIRECT, NGINX, PACKRELAY, PACKRELAY_INTERPRETED, SMG_NAME
from benchmarks.load.plan import Load, Measured
from benchmarks.question import Question, added, ratio
from benchmarks.setting import Setting

_LOAD = Load(port=0, mode="streams", connections=1000, events=1, warm=1.0, seconds=3.0)
_STREAM = ("--answer", "stream", "--per-second", "30", "--chunks", "900")
_OURS = (("--kind", "packrelay", *_STREAM),)
_STOCK = (_STREAM,)


def share(measured: Measured) -> float:
    """Per cent of one core."""
    return measured.share * 100


def late(measured: Measured) -> float:
    """The 99th percentile of an event's delay, in milliseconds."""
    return measured.delay.p99 * 1e3


QUESTION = Question(
    name="paced_streams",
    title="1,000 streams at 30 chunks/s",
    settings={
        PACKRELAY: Setting(contender=PACKRELAY, workers=_OURS, load=_LOAD),
        PACKRELAY_INTERPRETED: Setting(contender=PACKRELAY_INTERPRETED, workers=_OURS, load=_LOAD),
        NGINX: Setting(contender=NGINX, workers=_STOCK, load=_LOAD),
        SMG_NAME: Setting(contender=SMG_NAME, workers=_STOCK, load=_LOAD),
        DIRECT: Setting(contender=DIRECT, workers=_STOCK, load=_LOAD),
    },
    targets=(
        ratio(PACKRELAY, SMG_NAME, 0.80, share),
        added(PACKRELAY, DIRECT, 1.0, late, "p99 at most 1 ms over direct"),
    ),
    figure=share,
    unit="% core",
)
