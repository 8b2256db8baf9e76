"""What the scripted engine is told to say and when: by its options for every request, by markers in the prompt for one.

    [[text:Hello]]  [[tokens=200]]  [[fault:die_after=3]]  [[generation:silence_after=5]]

A marker is `[[name=value]]` or `[[name:value]]`, anywhere in the prompt; the last one of a name counts. The prefix `fault:` is for
readers; `context:` and `generation:` limit a marker to that leg of a disaggregated request. Only the scripted engine reads them.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from worker.engines.base import Leg

_Count = Annotated[int, Meta(ge=0)]
_Milliseconds = Annotated[float, Meta(ge=0)]


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request's script. Counts are in tokens.

    `text` (or `hex`, bytes that need not be UTF-8) is the answer; without it the answer is `tokens` long, or as long as the prompt
    makes it. `ttft_ms` is the time to the first token once the request has a slot, `itl_ms` the time between tokens. `cached` is
    how many prompt tokens count as cached.

    Faults: `refuse` is a sentence to refuse the request with; `die_after`, `raise_after` and `silence_after` say after how many
    tokens the engine dies, the request fails with an exception of no known kind, or nothing more comes (the slot stays taken);
    `nan_logprobs` makes log probabilities NaN; `finish` is a finish reason reported at the answer's own end; `lose_state` makes a
    generation leg find its state lost.
    """

    text: str | None = None
    hex: str | None = None
    tokens: _Count | None = None
    ttft_ms: _Milliseconds = 0.0
    itl_ms: _Milliseconds = 0.0
    cached: _Count = 0
    refuse: str | None = None
    die_after: _Count | None = None
    raise_after: _Count | None = None
    silence_after: _Count | None = None
    nan_logprobs: bool = False
    finish: Literal["stop", "length"] | None = None
    lose_state: bool = False

    @property
    def answer(self) -> bytes | None:
        """The bytes to say, None if the script leaves them open."""
        if self.hex is not None:
            return bytes.fromhex(self.hex)
        return None if self.text is None else self.text.encode()


class ScriptError(ValueError):
    """An option or a marker that is none, or has a value it cannot have."""


_NAMES: Final = frozenset(Script.__struct_fields__)
_MARKER = re.compile(r"\[\[(?:(fault|context|generation):)?(\w+)[=:](.*?)\]\]", re.DOTALL)
_LEGS: Final = {"context": Leg.CONTEXT, "generation": Leg.GENERATION}


def read_script(options: Mapping[str, object]) -> Script:
    """The script of these options; values may be text, as on a command line."""
    try:
        script = msgspec.convert(dict(options), Script, strict=False)
        bytes.fromhex(script.hex or "")
    except ValueError as error:
        raise ScriptError(f"The scripted engine cannot read its script: {error}") from error
    return script


def markers_in(prompt: str, leg: Leg) -> dict[str, str]:
    """The markers of a prompt that concern a leg. An unknown name is ordinary text, unless it says that it is a fault."""
    found = {}
    for prefix, name, value in _MARKER.findall(prompt):
        if prefix == "fault" and name not in _NAMES:
            raise ScriptError(f"The scripted engine knows no fault '{name}'; it knows {', '.join(sorted(_NAMES))}.")
        if name in _NAMES and _LEGS.get(prefix, leg) is leg:
            found[name] = value
    return found
