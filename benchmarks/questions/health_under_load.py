"""How long does `/health` take while bodies of 1 MB saturate the event loop?"""

from benchmarks.contenders import PACKRELAY, PYDANTIC_JSON, PYDANTIC_MSGPACK
from benchmarks.load.figures import median
from benchmarks.load.plan import Load, Measured
from benchmarks.question import Question, Results, Verdict
from benchmarks.setting import Setting

_LOAD = Load(port=0, connections=8, size=1_000_000, probe="/health", seconds=5.0)


def tail(measured: Measured) -> float:
    """The 99.9th percentile of a probe, in milliseconds."""
    return measured.probe.p999 * 1e3


def _below_its_middle(results: Results) -> Verdict:
    ours, theirs = results.get(PACKRELAY), results.get(PYDANTIC_JSON)
    if not ours or not theirs:
        return Verdict("p99.9 below its p50", None, 1.0, None, "not measured")
    value = median(tail(measured) for measured in ours) / median(measured.probe.p50 * 1e3 for measured in theirs)
    return Verdict(f"p99.9 below p50 of {PYDANTIC_JSON}", value, 1.0, value < 1.0)


QUESTION = Question(
    name="health_under_load",
    title="/health while 1 MB bodies saturate the loop",
    settings={
        PACKRELAY: Setting(contender=PACKRELAY, workers=(("--kind", "packrelay"),), load=_LOAD),
        PYDANTIC_JSON: Setting(contender=PYDANTIC_JSON, workers=((),), load=_LOAD),
        PYDANTIC_MSGPACK: Setting(contender=PYDANTIC_MSGPACK, workers=((),), load=_LOAD),
    },
    targets=(_below_its_middle,),
    figure=tail,
    unit="ms p99.9",
)
