"""Answers that are a function of the prompt and of how they are drawn, with logits that can be changed.

A prompt may say what happens, in markers: `[[text:…]]` the answer; `[[fail=N]]`, `[[die=N]]`, `[[silent=N]]` what the executor does
instead of token N; `[[ttft_ms=N]]` how long its prefill takes; `[[cached=N]]` how much of it was cached.
"""

import json
import math
import re
from collections.abc import Iterator
from hashlib import blake2b
from random import Random
from typing import Any, Final

from tests.fake_tensorrt_llm.tensor import Tensor
from tests.fake_tensorrt_llm.tokenizer import END

VOCABULARY: Final = 300
"""Logits the model has: more than the tokenizer has tokens, as with real models."""
PREFERENCE: Final = 10.0
_TEXT: Final = "a relay of packed messages runs while the stream goes on; naïve café 東京 привет 🚀"
_WORDS: Final = _TEXT.split()


class RequestError(RuntimeError):
    """What the library raises for one request that failed."""


def marked(prompt: list[int]) -> dict[str, str]:
    """The markers of a prompt."""
    text = bytes(token for token in prompt if token < 256).decode("utf-8", "replace")
    return dict(re.findall(r"\[\[(?:context:)?(\w+)[=:](.*?)\]\]", text, re.DOTALL))


def key_of(prompt: list[int], params: Any) -> bytes:
    """What an answer follows from. Any: a SamplingParams of either version."""
    parts: list[Any] = [prompt, params.repetition_penalty, params.presence_penalty, params.frequency_penalty]
    if params.temperature is not None or params.top_k is not None or params.top_p is not None:
        parts += [params.seed, params.temperature, params.top_p, params.top_k, params.min_p]
    return blake2b(repr(parts).encode(), digest_size=16).digest()


def prompt_logits(prompt: list[int]) -> list[Tensor]:
    """A row per token of the prompt, about the one that follows it."""
    return [Tensor([Random(f"{token}").random() + place % 7 for place in range(VOCABULARY)]) for token in prompt]


class Answer:
    """One answer, a token at a time. `said` counts those that another engine has drawn already."""

    def __init__(self, prompt: list[int], params: Any, key: bytes, said: int = 0) -> None:
        self._params = params
        self._key = key
        self._fixed = self._forced() if params.guided_decoding else _encoded(marked(prompt).get("text"))
        self._bytes = self._words(Random(key))
        self._length = 16 + key[0] % 48
        self.position = 0
        for _ in range(said):
            self._preferred()
            self.position += 1

    def draw(self) -> tuple[int, dict[int, float]]:
        """The next token, and the log probabilities of the likely ones."""
        logits = self._logits(self._preferred())
        chosen = max(logits, key=lambda token: (logits[token], -token))
        self.position += 1
        total = math.log(sum(math.exp(value) for value in logits.values() if value > -math.inf))
        return chosen, {token: value - total for token, value in logits.items() if value > -math.inf}

    def _preferred(self) -> int:
        if self._fixed is not None:
            return self._fixed[self.position] if self.position < len(self._fixed) else END
        word = next(self._bytes)
        ended = self.position >= self._length and not self._params.ignore_eos
        return END if ended else word

    def _logits(self, preferred: int) -> dict[int, float]:
        random = Random(self._key + bytes([self.position % 251]))
        logits = {random.randrange(32, 127): -number / 10 for number in range(24)} | {preferred: PREFERENCE}
        row = Tensor([logits.get(token, -50.0) for token in range(VOCABULARY)])
        if self._params.embedding_bias is not None:
            row = Tensor([value + more for value, more in zip(row, self._params.embedding_bias, strict=True)])
        if self._params.logits_processor is not None:
            self._params.logits_processor(0, row, [[]], None, None)
        if self.position < (self._params.min_tokens or 0):
            row[END] = -math.inf
        return dict(enumerate(row))

    def _words(self, random: Random) -> Iterator[int]:
        while True:
            yield from f"{random.choice(_WORDS)} ".encode()

    def _forced(self) -> bytes:
        """Text that fits the guide; a schema it cannot follow fails the request."""
        guide = self._params.guided_decoding
        if guide.json_object:
            return b'{"text": "relay"}'
        if guide.json is not None:
            return json.dumps(_instance(guide.json)).encode()
        if guide.grammar is not None:
            return str(re.findall(r'"(.*?)"', guide.grammar)[0]).encode()
        found = next((text for text in ("aba", "no", "1") if re.fullmatch(guide.regex, text)), None)
        if found is None:
            raise RequestError("no text for the expression")
        return found.encode()


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _instance(schema: Any) -> Any:
    """A value that fits a simple schema."""
    if "$ref" in schema:
        raise RequestError(f"unresolved reference {schema['$ref']}")
    made: dict[str, Any] = {"integer": 7, "number": 1.5, "boolean": True, "string": "relay", "null": None, "array": []}
    kind = schema.get("type", "object")
    if kind != "object":
        return made[kind]
    return {name: _instance(inner) for name, inner in schema.get("properties", {}).items()}
