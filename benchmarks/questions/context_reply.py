"""What does it cost to relay a context leg's reply of 100,000 prompt ids to the generation leg?

The relay of pydantic models is given what stock workers answered in its history, integers in JSON; ours the two msgpack forms, and
that one beside them. Flat means: an id more costs, from 100,000 to 400,000 ids, no more than 1.3 times what it costs from 10,000 to
100,000.
"""

from benchmarks.contenders import PACKRELAY, PYDANTIC_MSGPACK
from benchmarks.load.plan import Load
from benchmarks.question import Question, Results, Target, Verdict, middle, per_request, ratio
from benchmarks.setting import Setting

_LOAD = Load(port=0, connections=4)
_FLAT = 1.3


def _setting(contender: str, ids: int, form: str) -> Setting:
    kind = "packrelay" if contender == PACKRELAY else "stock"
    context = ("--kind", kind, "--answer", "context", "--ids", str(ids), "--ids-form", form)
    return Setting(contender=contender, workers=(("--kind", kind),), contexts=(context,), load=_LOAD)


def _flat(label: str) -> Target:
    def judge(results: Results) -> Verdict:
        few, many = middle(results, f"{label}, 10k", per_request), middle(results, f"{label}, 400k", per_request)
        usual = middle(results, label, per_request)
        if few is None or usual is None or many is None:
            return Verdict("flat per id", None, _FLAT, None, "not measured")
        value = ((many - usual) / 300) / ((usual - few) / 90)
        return Verdict(f"flat per id ({label})", value, _FLAT, value <= _FLAT)

    return judge


_BASE64 = "packrelay, base64"

QUESTION = Question(
    name="context_reply",
    title="context reply of 100,000 ids",
    settings={
        PACKRELAY: _setting(PACKRELAY, 100_000, "integers"),
        _BASE64: _setting(PACKRELAY, 100_000, "base64"),
        PYDANTIC_MSGPACK: _setting(PYDANTIC_MSGPACK, 100_000, "json"),
        "packrelay, JSON": _setting(PACKRELAY, 100_000, "json"),
        f"{PACKRELAY}, 10k": _setting(PACKRELAY, 10_000, "integers"),
        f"{PACKRELAY}, 400k": _setting(PACKRELAY, 400_000, "integers"),
        f"{_BASE64}, 10k": _setting(PACKRELAY, 10_000, "base64"),
        f"{_BASE64}, 400k": _setting(PACKRELAY, 400_000, "base64"),
    },
    targets=(
        ratio(PACKRELAY, PYDANTIC_MSGPACK, 0.02),
        ratio(_BASE64, PYDANTIC_MSGPACK, 0.02),
        _flat(PACKRELAY),
        _flat(_BASE64),
    ),
)
