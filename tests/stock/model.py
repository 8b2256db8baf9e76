"""A model without weights: one token per byte of the prompt, an answer that is a function of the prompt's token ids."""

import json
import zlib
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from tests.stock.protocol import ChatRequest, CompletionRequest, Generation

WORDS = (
    " a",
    " relay",
    " of",
    " packed",
    " messages",
    " größer",
    " 中文",
    " 🙂",
    " and",
    " then",
    ",",
    " more",
    " tokens",
    ".",
)
FIRST_ID = 1000
LONGEST = 32


@dataclass(frozen=True)
class Token:
    """A token of the answer."""

    id: int
    text: str


@dataclass(frozen=True)
class Sequence:
    """One answer to one prompt. With `call` the tokens are the arguments of a call of that function."""

    prompt: list[int]
    tokens: list[Token]
    finish_reason: str
    stop_reason: str | int | None = None
    call: str | None = None

    def text(self) -> str:
        """The answer in one piece."""
        return "".join(token.text for token in self.tokens)


def tokenize(text: str) -> list[int]:
    """Token ids of a text: its bytes."""
    return list(text.encode())


def detokenize(ids: list[int]) -> list[str]:
    """The texts of token ids, one each; ids that are no bytes are shown as numbers."""
    return [bytes([id_]).decode("latin-1") if id_ < 256 else f"<{id_}>" for id_ in ids]


def render(request: ChatRequest) -> str:
    """The conversation as the text of a prompt, the tools before it."""
    tools = "".join(tool.model_dump_json() for tool in request.tools or [])
    return tools + "".join(f"<{message['role']}>{_words_of(message.get('content'))}\n" for message in request.messages)


def _words_of(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content or ""


def answer(request: Generation, prompt: list[int], number: int = 0) -> Sequence:
    """Choice `number` of the answers to a prompt."""
    pieces, call = _pieces(request, prompt, number)
    finish, limit = "stop", request.limit()
    if limit is not None and limit < len(pieces):
        pieces, finish = pieces[:limit], "length"
    whole = Sequence(prompt, [_token(piece) for piece in pieces], finish, call=call)
    return _stopped(whole, [request.stop] if isinstance(request.stop, str) else request.stop or [])


def first_token_only(sequence: Sequence) -> Sequence:
    """What a context leg makes of an answer: the engine caps it at one token."""
    ended = len(sequence.tokens) <= 1 and sequence.finish_reason == "stop"
    reason = "stop" if ended else "length"
    return replace(sequence, tokens=sequence.tokens[:1], finish_reason=reason)


def _pieces(request: Generation, prompt: list[int], number: int) -> tuple[list[str], str | None]:
    if isinstance(request, ChatRequest) and (tool := request.forced_tool()):
        return _split(json.dumps(_instance(tool.parameters or {}))), tool.name
    if request.response_format and request.response_format.type in {"json_schema", "json_object", "json"}:
        wrapped = request.response_format.json_schema or {}
        return _split(json.dumps(_instance(wrapped.get("schema", request.response_format.schema_ or {})))), None
    digest = blake2b(repr((prompt, request.seed, number)).encode(), digest_size=LONGEST).digest()
    length = (request.limit() or LONGEST) if request.ignore_eos else 3 + digest[0] % 12
    return [WORDS[digest[at % LONGEST] % len(WORDS)] for at in range(length)], None


def _split(text: str) -> list[str]:
    return [text[start : start + 4] for start in range(0, len(text), 4)]


def _token(piece: str) -> Token:
    return Token(FIRST_ID + zlib.crc32(piece.encode()) % 50_000, piece)


def _instance(schema: dict[str, Any]) -> Any:
    """The simplest value that fits a JSON Schema of the kinds clients send."""
    if "enum" in schema:
        return schema["enum"][0]
    simple = {"string": "abc", "integer": 1, "number": 0.5, "boolean": True, "null": None, "array": []}
    if schema.get("type") in simple:
        return simple[schema["type"]]
    return {name: _instance(part) for name, part in schema.get("properties", {}).items()}


def _stopped(sequence: Sequence, stops: list[str]) -> Sequence:
    text = ""
    for count, token in enumerate(sequence.tokens):
        ends = [(at, stop) for stop in stops if stop and (at := (text + token.text).find(stop)) >= 0]
        if ends:
            at, stop = min(ends)
            kept = _trimmed(sequence.tokens[: count + 1], at)
            return replace(sequence, tokens=kept, finish_reason="stop", stop_reason=stop)
        text += token.text
    return sequence


def _trimmed(tokens: list[Token], length: int) -> list[Token]:
    """The tokens with so many characters of text between them; a token whose text is cut away still stands."""
    kept = []
    for token in tokens:
        kept.append(replace(token, text=token.text[:length]))
        length -= len(kept[-1].text)
    return kept


def prompts_of(request: Generation) -> list[list[int]]:
    """The prompts of a request as token ids."""
    if isinstance(request, CompletionRequest):
        return [tokenize(prompt) if isinstance(prompt, str) else prompt for prompt in request.prompts()]
    if isinstance(request, ChatRequest):
        return [tokenize(render(request))]
    raise TypeError(type(request).__name__)
