"""The body of a context leg's reply, read no further than the generation leg needs.

The hand-off's parts stay msgpack bytes (`Raw`) on their way to the generation frame: of 100,000 prompt ids none becomes a Python
object, unless the worker answers JSON integers (a stock completions reply), which costs one typed decode.
"""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from schemas.codec import json_decoder, msgpack_decoder
from schemas.openai.chat import ChatCompletion
from schemas.openai.completions import Completion

NULL: Final = Raw(b"\xc0")


class ContextChoice(Struct):
    finish_reason: str | None = None
    disaggregated_params: dict[str, Raw] | None | UnsetType = UNSET


class ContextBody(Struct):
    choices: list[ContextChoice]
    usage: Raw | UnsetType = UNSET
    prompt_token_ids: Raw | UnsetType = UNSET
    prompt_token_ids_b64: Raw | UnsetType = UNSET


class _JsonChoice(Struct):
    finish_reason: str | None = None
    disaggregated_params: dict[str, Any] | None | UnsetType = UNSET


class _JsonBody(Struct):
    choices: list[_JsonChoice]
    usage: dict[str, Any] | None | UnsetType = UNSET
    prompt_token_ids: list[int] | None | UnsetType = UNSET
    prompt_token_ids_b64: str | None | UnsetType = UNSET


_msgpack = msgpack_decoder(ContextBody)
_json = json_decoder(_JsonBody)
_any_msgpack = msgspec.msgpack.Decoder(dict[str, Any])
_text = msgspec.msgpack.Decoder(str | list[str] | None)
_any_json = json_decoder(dict[str, Any])
_typed: dict[tuple[bool, bool], Any] = {
    (True, True): msgpack_decoder(ChatCompletion),
    (True, False): msgpack_decoder(Completion),
    (False, True): json_decoder(ChatCompletion),
    (False, False): json_decoder(Completion),
}


def parts_of(body: bytes, *, packed: bool) -> ContextBody:
    """The parts the generation leg needs, of msgpack or JSON. Raises what msgspec does, as the others here."""
    if packed:
        parts: ContextBody = _msgpack.decode(body)
        return parts
    return _packed_parts(_json.decode(body))


def whole_of(body: bytes, *, packed: bool) -> dict[str, Any]:
    """All of it."""
    whole: dict[str, Any] = (_any_msgpack if packed else _any_json).decode(body)
    return whole


def typed_of(body: bytes, *, packed: bool, chat: bool) -> ChatCompletion | Completion:
    """All of it, as its Struct."""
    typed: ChatCompletion | Completion = _typed[packed, chat].decode(body)
    return typed


def text_of(part: Raw) -> str | list[str] | None:
    """A part that is a text, or a list of them."""
    text: str | list[str] | None = _text.decode(part)
    return text


def present(part: Raw | UnsetType) -> Raw | UnsetType:
    """A part that says something: null is as if it was not there."""
    return UNSET if part is UNSET or part == NULL else part


def _packed_parts(read: _JsonBody) -> ContextBody:
    """A JSON reply's parts as msgpack."""
    encode = msgspec.msgpack.encode
    return ContextBody(
        choices=[
            ContextChoice(
                finish_reason=choice.finish_reason,
                disaggregated_params={
                    name: Raw(encode(value)) for name, value in (choice.disaggregated_params or {}).items()
                },
            )
            for choice in read.choices
        ],
        usage=UNSET if read.usage is UNSET else Raw(encode(read.usage)),
        prompt_token_ids=UNSET if read.prompt_token_ids is UNSET else Raw(encode(read.prompt_token_ids)),
        prompt_token_ids_b64=UNSET if read.prompt_token_ids_b64 is UNSET else Raw(encode(read.prompt_token_ids_b64)),
    )
