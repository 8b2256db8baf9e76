"""What a token costs the gateway over each link to a worker, and what a whole reply does.

64 streams of 128 tokens, as the worker writes them: one token a millisecond and stream, one every four (at that pace both links
deliver the same on a small machine), and flat out. The workers are stubs that write what was made beforehand; over gRPC through the
worker's own channel. A token's cost holds its share of its request's. Nothing is logged. The floor is HTTP without a read window.
"""

from functools import partial
from typing import Final

from msgspec import structs

from benchmarks.contenders import (
    PACKRELAY_AT_ONCE,
    PACKRELAY_GRPC,
    PACKRELAY_GRPC_AT_ONCE,
    PACKRELAY_GRPC_LONG,
    PACKRELAY_QUIET,
)
from benchmarks.load.plan import Load, Measured
from benchmarks.question import Question, Results, Target, Verdict, middle, per_event, ratio
from benchmarks.setting import Setting

TOKENS: Final = 128
EQUAL: Final = 1.1
"""Delivered rates that are further apart are not the same."""
_STREAMS: Final = Load(port=0, connections=64, events=TOKENS, warm=1.0, seconds=4.0)
_UNARY: Final = Load(port=0, connections=64, warm=1.0, seconds=3.0)
_GRPC: Final = (PACKRELAY_GRPC, PACKRELAY_GRPC_LONG, PACKRELAY_GRPC_AT_ONCE)
_HTTP: Final = (PACKRELAY_AT_ONCE, PACKRELAY_QUIET)


def _settings(load: Load, names: tuple[str, ...], *stub: str) -> dict[str, Setting]:
    """Each gateway before one stub that speaks its link."""
    return {
        name: Setting(
            contender=name,
            workers=(("--kind", "packrelay", "--link", "grpc" if name in _GRPC else "http", *stub),),
            load=load,
        )
        for name in names
    }


def per_second(measured: Measured) -> float:
    """Tokens delivered."""
    return measured.events / measured.seconds


def at_equal_rate(contender: str, at_most: float) -> Target:
    """As `ratio`, where both delivered as much: who falls behind the pace reads several tokens at once, and each costs it less."""
    judged = ratio(contender, PACKRELAY_AT_ONCE, at_most, per_event)

    def judge(results: Results) -> Verdict:
        verdict = judged(results)
        rates = [middle(results, label, per_second) or 0.0 for label in (contender, PACKRELAY_AT_ONCE)]
        if min(rates) * EQUAL < max(rates):
            note = f"{rates[0]:.0f} and {rates[1]:.0f} tokens/s are not the same"
            return structs.replace(verdict, met=None, note=note)
        return verdict

    return judge


def _streams(name: str, title: str, at_most: float, *pace: str) -> Question:
    judge = at_equal_rate if pace else partial(ratio, floor=PACKRELAY_AT_ONCE, figure=per_event)
    return Question(
        name=name,
        title=title,
        settings=_settings(_STREAMS, (*_GRPC, *_HTTP), "--answer", "stream", "--chunks", str(TOKENS), *pace),
        targets=tuple(judge(contender, at_most=at_most) for contender in _GRPC[:2]),
        figure=per_event,
        unit="us a token",
    )


QUESTIONS: tuple[Question, ...] = (
    _streams("links_paced", "Links: 64 streams, 1 token/ms each", 0.75, "--per-second", "1000"),
    _streams("links_paced_slowly", "Links: 64 streams, 1 token/4 ms each", 0.75, "--per-second", "250"),
    _streams("links_flat_out", "Links: 64 streams flat out", 0.60),
    Question(
        name="links_unary",
        title="Links: whole replies, 64 at a time",
        settings=_settings(_UNARY, (PACKRELAY_GRPC, PACKRELAY_QUIET), "--answer", "whole"),
        targets=(),
    ),
)
