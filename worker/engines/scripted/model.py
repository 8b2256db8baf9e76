"""The scripted engine's model: a byte-level vocabulary, and answers that are a function of prompt, sampling and position.

Token ids 0 to 255 are bytes, the ids after them are markers, and the rest of the vocabulary means nothing: it is there so that
prompts of other models' token ids can be replayed. An answer is a stream of words; temperature 0 ignores the seed, any
other temperature makes seed, temperature, top_p, top_k and min_p part of the function, penalties always are.
"""

import json
import re
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from math import log, nan
from random import Random
from typing import Final, Literal, NamedTuple

from worker.engines.base import Candidate, EngineRefused, Sampling, SequenceRequest, Token
from worker.engines.scripted.schema_instance import NoInstance, instance_of
from worker.engines.scripted.script import Script

MARKERS: Final = ("<|begin|>", "<|im_start|>", "<|im_end|>")
BEGIN, _, END = range(256, 256 + len(MARKERS))
VOCABULARY_SIZE: Final = 1 << 17

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

_MARKER = re.compile("|".join(re.escape(marker) for marker in MARKERS))
_BYTES: Final = [bytes([value]) for value in range(256)]
_TOKENS: Final = [Token(id=id_, data=_BYTES[id_] if id_ < 256 else b"") for id_ in range(256 + len(MARKERS))]
_TEXT: Final = """
a relay of packed messages runs from prefill to decode and back, passing state as bytes while the stream goes on;
naïve café 東京 привет 🚀 γλώσσα
"""
_WORDS: Final = _TEXT.split()

_PREFERENCE: Final = 10.0
"""The logit of the token the model would say; of every other it is 0. Biases are added to these."""


def tokenize(text: str, *, special: bool, add_special: bool) -> list[int]:
    """UTF-8 bytes, with the markers as tokens of their own if asked for."""
    tokens = [BEGIN] if add_special else []
    if not special:
        return tokens + list(text.encode())
    place = 0
    for marker in _MARKER.finditer(text):
        tokens += text[place : marker.start()].encode()
        tokens.append(256 + MARKERS.index(marker.group()))
        place = marker.end()
    return tokens + list(text[place:].encode())


def token_bytes(token: int) -> bytes:
    """A byte, or the name of what is no text."""
    if token < 256:
        return _BYTES[token]
    number = token - 256
    return MARKERS[number].encode() if number < len(MARKERS) else f"<|{token}|>".encode()


def _plain(token: int) -> Token:
    """The token without log probabilities."""
    return _TOKENS[token] if token < len(_TOKENS) else Token(id=token, data=b"")


def text_of(prompt: list[int]) -> str:
    """The text of a prompt; its markers come out as control characters."""
    return array("i", prompt).tobytes()[:: array("i").itemsize].decode("utf-8", "replace")


def prompt_digest(prompt: list[int]) -> bytes:
    return blake2b(array("i", prompt).tobytes(), digest_size=16).digest()


def answer_key(model: str, request: SequenceRequest, seed: int) -> bytes:
    """What an answer depends on, as a key: equal keys give equal answers. `seed` counts only where something is drawn."""
    sampling = request.sampling
    parts: list[object] = [model, sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty]
    if sampling.temperature > 0:
        parts += [seed, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p]
    return blake2b(repr(parts).encode() + prompt_digest(request.prompt), digest_size=16).digest()


class Said(NamedTuple):
    """The next token, and how the sequence ends with it, if it does."""

    token: Token
    finish_reason: Literal["stop", "length"] | None = None
    stop_token: int | None = None


class Answer:
    """One sequence's tokens, one `say` at a time."""

    def __init__(self, key: bytes, sampling: Sampling, script: Script) -> None:
        self._key = key
        self._sampling = sampling
        self._script = script
        self._random = Random(key)
        self._words = self._word_bytes()
        self._form = self._forced()
        self._text = self._form if self._form is not None else script.answer
        self._length = self._planned_length()
        self._endless = sampling.ignore_eos or sampling.logit_bias.get(END, 0.0) <= -_PREFERENCE
        self.position = 0

    def say(self) -> Said:
        """Choose the next token."""
        chosen = self._choose(self._preferred())
        self.position += 1
        token = self._token(chosen)
        if chosen == END and (self._form is not None or not self._sampling.ignore_eos):
            return Said(token, self._script.finish or "stop")
        if chosen in self._sampling.stop_token_ids and self.position > self._sampling.min_tokens:
            return Said(Token(id=chosen, data=b"", logprob=token.logprob, top=token.top), "stop", chosen)
        return Said(token, "length" if self.position >= self._sampling.max_tokens else None)

    def _forced(self) -> bytes | None:
        """The JSON text of a constraint, None without one."""
        constraint = self._sampling.constraint
        if constraint is None:
            return None
        if constraint.kind not in ("json_object", "json_schema"):
            raise EngineRefused(f"The scripted engine cannot enforce a {constraint.kind}.", "response_format")
        word = self._random.choice(_WORDS)
        schema = json.loads(constraint.text) if constraint.kind == "json_schema" else None
        try:
            value = {"text": word} if schema is None else instance_of(schema, word)
        except NoInstance as error:
            raise EngineRefused(f"The scripted engine cannot follow this schema: {error}", "response_format") from error
        return json.dumps(value, ensure_ascii=False).encode()

    def _planned_length(self) -> int:
        if self._text is not None:
            return len(self._text)
        return 16 + self._key[0] % 48 if self._script.tokens is None else self._script.tokens

    def _word_bytes(self) -> Iterator[int]:
        while True:
            yield from f"{self._random.choice(_WORDS)} ".encode()

    def _preferred(self) -> int:
        if self._text is not None and self.position < len(self._text):
            return self._text[self.position]
        if self._form is not None:
            return END
        ended = self.position >= max(self._length, self._sampling.min_tokens)
        return END if ended and not self._endless else next(self._words)

    def _choose(self, preferred: int) -> int:
        """The token of the highest logit that is allowed here; a form allows one token only."""
        bias = self._sampling.logit_bias
        if self._form is not None or (not bias and self._allowed(preferred)):
            return preferred
        logits = dict.fromkeys(_alternatives(self._hash(), preferred, 20), 0.0) | {preferred: _PREFERENCE}
        for token, value in bias.items():
            logits[token] = logits.get(token, 0.0) + value
        return max(filter(self._allowed, logits), key=lambda token: (logits[token], token), default=preferred)

    def _allowed(self, token: int) -> bool:
        if token == END and self._sampling.ignore_eos:
            return False
        early = self.position < self._sampling.min_tokens
        return not (early and (token == END or token in self._sampling.stop_token_ids))

    def _token(self, chosen: int) -> Token:
        if self._sampling.logprobs is None:
            return _plain(chosen)
        return judged(chosen, self._hash(), self._sampling.logprobs, broken=self._script.nan_logprobs)

    def _hash(self) -> bytes:
        return blake2b(self.position.to_bytes(8, "big"), key=self._key).digest()


def judged_prompt(prompt: list[int], count: int) -> list[Token]:
    """The prompt's tokens with their log probabilities; the first has none."""
    digest = prompt_digest(prompt)
    rest = [
        judged(token, blake2b(place.to_bytes(8, "big"), key=digest).digest(), count)
        for place, token in enumerate(prompt[1:], start=1)
    ]
    return [_plain(prompt[0]), *rest]


def judged(token: int, hash_: bytes, count: int, *, broken: bool = False) -> Token:
    """A token with its log probability and the `count` most likely ones, itself the first of them."""
    likely = 0.5 + 0.49 * hash_[0] / 255
    rest = 1.0 - likely
    chances = [(token, likely)]
    for other in _alternatives(hash_, token, count - 1):
        rest /= 2
        chances.append((other, rest))
    top = [Candidate(id_, _plain(id_).data, nan if broken else log(chance)) for id_, chance in chances[:count]]
    return Token(id=token, data=_plain(token).data, logprob=nan if broken else log(likely), top=top)


def _alternatives(hash_: bytes, token: int, count: int) -> list[int]:
    """Other tokens, printable ones, that a hash names."""
    named = dict.fromkeys(32 + value % 95 for value in hash_)
    named.pop(token, None)
    return list(named)[: max(0, count)]
