"""What does the smallest request cost when it takes a context leg and a generation leg?"""

from benchmarks.contenders import PACKRELAY, PACKRELAY_INTERPRETED, PYDANTIC_MSGPACK, SMG_NAME
from benchmarks.load.plan import Load
from benchmarks.question import Question, ratio
from benchmarks.setting import Setting

_LOAD = Load(port=0, connections=16)
_CONTEXT = ("--answer", "context", "--ids", "12", "--ids-form", "base64")
_GENERATION = (("--kind", "packrelay"),)
_PREFILL = (("--kind", "packrelay", *_CONTEXT),)
SMG_LEGS = "SMG prefill/decode"

QUESTION = Question(
    name="two_legs",
    title="small chat, two legs",
    settings={
        PACKRELAY: Setting(contender=PACKRELAY, workers=_GENERATION, contexts=_PREFILL, load=_LOAD),
        PACKRELAY_INTERPRETED: Setting(
            contender=PACKRELAY_INTERPRETED, workers=_GENERATION, contexts=_PREFILL, load=_LOAD
        ),
        SMG_LEGS: Setting(contender=SMG_NAME, workers=((),), contexts=((),), load=_LOAD),
        PYDANTIC_MSGPACK: Setting(contender=PYDANTIC_MSGPACK, workers=((),), contexts=(_CONTEXT,), load=_LOAD),
    },
    targets=(ratio(PACKRELAY, SMG_LEGS, 0.45),),
)
