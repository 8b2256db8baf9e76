"""What does a stream of 128 events cost when the worker writes them as fast as it can?

Our read window collects what arrives within it; the first event never waits.
"""

from benchmarks.contenders import DIRECT, NGINX, PACKRELAY, PACKRELAY_INTERPRETED, PYDANTIC_JSON, SMG_NAME
from benchmarks.load.plan import Load
from benchmarks.question import Question, ratio
from benchmarks.setting import Setting

_LOAD = Load(port=0, connections=8, events=128)
_STREAM = ("--answer", "stream", "--chunks", "128")
_OURS = (("--kind", "packrelay", *_STREAM),)
_STOCK = (_STREAM,)

QUESTION = Question(
    name="stream_flat_out",
    title="SSE, 128 chunks, 8 connections flat out",
    settings={
        PACKRELAY: Setting(contender=PACKRELAY, workers=_OURS, load=_LOAD),
        PACKRELAY_INTERPRETED: Setting(contender=PACKRELAY_INTERPRETED, workers=_OURS, load=_LOAD),
        NGINX: Setting(contender=NGINX, workers=_STOCK, load=_LOAD),
        SMG_NAME: Setting(contender=SMG_NAME, workers=_STOCK, load=_LOAD),
        PYDANTIC_JSON: Setting(contender=PYDANTIC_JSON, workers=_STOCK, load=_LOAD),
        DIRECT: Setting(contender=DIRECT, workers=_STOCK, load=_LOAD),
    },
    targets=(ratio(PACKRELAY, SMG_NAME, 0.40),),
)
