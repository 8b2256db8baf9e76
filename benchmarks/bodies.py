"""Request bodies as agents send them, the same bytes for the same size and alphabet on every machine.

A body holds what a coding agent's does: tools with JSON Schemas, a system prompt, and turns of user text, assistant tool calls
(JSON within JSON, so many escapes) and tool results (code). `mixed` has about 15 % text beyond ASCII, written as UTF-8.
"""

import json
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any, Literal

Alphabet = Literal["ascii", "mixed"]

MODEL = "bench"

_WORDS = ["read", "the", "file", "and", "change", "what", "it", "returns", "when", "a", "list", "is", "empty", "please"]
_MIXED = ["читай", "файл", "東京", "データ", "größer", "déjà", "vu", "naïve", "🚀", "値を返す", "проверь"]
_CODE = [
    'def total(values: list[int]) -> int:\n    """The sum."""\n    return sum(values)\n',
    'if __name__ == "__main__":\n    print("{}\\t{}".format(total([1, 2]), "ok"))\n',
    "class Reader:\n    def __init__(self, path: str) -> None:\n        self.path = path\n",
]


@cache
def agentic(size: int, alphabet: Alphabet = "mixed", *, stream: bool = False) -> bytes:
    """A chat body of about `size` bytes (within a turn's length)."""
    dice = Random(size)
    body: dict[str, Any] = {
        "model": MODEL,
        "stream": stream,
        "max_tokens": 128,
        "temperature": 0.2,
        "tools": [_tool(index) for index in range(min(24, size // 2048))],
        "messages": [{"role": "system", "content": "You are a careful programmer."}],
    }
    length = len(_encoded(body))
    for message in _turns(dice, alphabet):
        body["messages"].append(message)
        length += len(_encoded(message)) + 1
        if length >= size:
            break
    return _encoded(body)


def small(*, stream: bool = False) -> bytes:
    """The smallest chat that is one."""
    message = {"role": "user", "content": "Say hello to the world, please."}
    return _encoded({"model": MODEL, "messages": [message], "max_tokens": 128, "stream": stream})


def _turns(dice: Random, alphabet: Alphabet) -> Iterator[dict[str, Any]]:
    turn = 0
    while True:
        turn += 1
        yield {"role": "user", "content": [{"type": "text", "text": _prose(dice, alphabet, 40)}]}
        arguments = json.dumps({"path": f"src/module_{turn}.py", "new": dice.choice(_CODE), "line": turn}, indent=1)
        call = {"id": f"call_{turn:06d}", "type": "function", "function": {"name": "edit_3", "arguments": arguments}}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
        listing = "".join(dice.choice(_CODE) for _ in range(6))
        yield {"role": "tool", "tool_call_id": f"call_{turn:06d}", "content": listing + _prose(dice, alphabet, 30)}


def _prose(dice: Random, alphabet: Alphabet, words: int) -> str:
    foreign = 0.6 if alphabet == "mixed" else 0.0
    return " ".join(dice.choice(_MIXED if dice.random() < foreign else _WORDS) for _ in range(words))


def _tool(index: int) -> dict[str, Any]:
    properties = {
        name: {"type": "string", "description": f"What {name} is for, in words."} for name in ("path", "new", "old")
    }
    schema = {"type": "object", "properties": properties, "required": ["path"], "additionalProperties": False}
    function = {"name": f"edit_{index}", "description": "Changes a file in place.", "parameters": schema}
    return {"type": "function", "function": function}


def _encoded(value: Any) -> bytes:  # Any: a JSON value.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
