"""What does an agent's body of 1 MB cost in the plain form, for a stock worker?"""

from benchmarks.contenders import PACKRELAY, PYDANTIC_MSGPACK, SMG_NAME
from benchmarks.load.plan import Load
from benchmarks.question import Question, ratio
from benchmarks.setting import Setting

_LOAD = Load(port=0, connections=8, size=1_000_000)
_ASCII = Load(port=0, connections=8, size=1_000_000, alphabet="ascii")
_STOCK: tuple[tuple[str, ...], ...] = ((),)

QUESTION = Question(
    name="plain_1mb",
    title="1 MB agentic body, plain form",
    settings={
        PACKRELAY: Setting(contender=PACKRELAY, workers=_STOCK, load=_LOAD),
        "packrelay, ASCII": Setting(contender=PACKRELAY, workers=_STOCK, load=_ASCII),
        SMG_NAME: Setting(contender=SMG_NAME, workers=_STOCK, load=_LOAD),
        PYDANTIC_MSGPACK: Setting(contender=PYDANTIC_MSGPACK, workers=_STOCK, load=_LOAD),
    },
    targets=(ratio(PACKRELAY, SMG_NAME, 0.65), ratio(PACKRELAY, PYDANTIC_MSGPACK, 0.50)),
)
