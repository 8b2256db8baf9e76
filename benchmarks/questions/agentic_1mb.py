"""What does an agent's body of 1 MB cost in the deferred form?"""

from benchmarks.contenders import NGINX, PACKRELAY, PYDANTIC_JSON, PYDANTIC_MSGPACK, SMG_NAME
from benchmarks.load.plan import Load
from benchmarks.question import Question, ratio
from benchmarks.setting import Setting

_LOAD = Load(port=0, connections=8, size=1_000_000)
_STOCK: tuple[tuple[str, ...], ...] = ((),)

QUESTION = Question(
    name="agentic_1mb",
    title="1 MB agentic body, deferred form",
    settings={
        PACKRELAY: Setting(contender=PACKRELAY, workers=(("--kind", "packrelay"),), load=_LOAD),
        NGINX: Setting(contender=NGINX, workers=_STOCK, load=_LOAD),
        SMG_NAME: Setting(contender=SMG_NAME, workers=_STOCK, load=_LOAD),
        PYDANTIC_JSON: Setting(contender=PYDANTIC_JSON, workers=_STOCK, load=_LOAD),
        PYDANTIC_MSGPACK: Setting(contender=PYDANTIC_MSGPACK, workers=_STOCK, load=_LOAD),
    },
    targets=(
        ratio(PACKRELAY, SMG_NAME, 0.18),
        ratio(PACKRELAY, PYDANTIC_MSGPACK, 0.15),
        ratio(PACKRELAY, NGINX, 5.0),
    ),
)
