"""What does the smallest request cost?"""

from benchmarks.contenders import (
    DIRECT,
    NGINX,
    PACKRELAY,
    PACKRELAY_INTERPRETED,
    PACKRELAY_QUIET,
    PYDANTIC_JSON,
    PYDANTIC_MSGPACK,
    SMG_NAME,
    SMG_QUIET,
)
from benchmarks.load.plan import Load
from benchmarks.question import Question, ratio
from benchmarks.setting import Setting

_LOAD = Load(port=0, connections=16)
_OURS = (("--kind", "packrelay"),)
_STOCK = (("--kind", "stock"),)

QUESTION = Question(
    name="small_chat",
    title="small chat",
    settings={
        PACKRELAY: Setting(contender=PACKRELAY, workers=_OURS, load=_LOAD),
        PACKRELAY_INTERPRETED: Setting(contender=PACKRELAY_INTERPRETED, workers=_OURS, load=_LOAD),
        NGINX: Setting(contender=NGINX, workers=_STOCK, load=_LOAD),
        SMG_NAME: Setting(contender=SMG_NAME, workers=_STOCK, load=_LOAD),
        PACKRELAY_QUIET: Setting(contender=PACKRELAY_QUIET, workers=_OURS, load=_LOAD),
        SMG_QUIET: Setting(contender=SMG_QUIET, workers=_STOCK, load=_LOAD),
        PYDANTIC_JSON: Setting(contender=PYDANTIC_JSON, workers=_STOCK, load=_LOAD),
        PYDANTIC_MSGPACK: Setting(contender=PYDANTIC_MSGPACK, workers=_STOCK, load=_LOAD),
        DIRECT: Setting(contender=DIRECT, workers=_STOCK, load=_LOAD),
    },
    targets=(ratio(PACKRELAY, SMG_NAME, 0.50), ratio(PACKRELAY, NGINX, 4.0)),
)
