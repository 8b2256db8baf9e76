"""What a context worker answered, read no further than the generation leg needs.

The hand-off's parts stay msgpack bytes (`Raw`) on their way to the generation frame: of 100,000 prompt ids none becomes a Python
object, unless the worker answers JSON integers (a stock completions reply), which costs one typed decode.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.links.base import BadReply, Reply
from schemas.codec import MALFORMED, MSGPACK_TYPE, json_decoder, msgpack_decoder
from schemas.disagg import PENDING_FINISH_REASONS
from schemas.openai.chat import ChatCompletion
from schemas.openai.completions import Completion


class _Choice(Struct):
    finish_reason: str | None = None
    disaggregated_params: dict[str, Raw] | None | UnsetType = UNSET


class _Body(Struct):
    choices: list[_Choice]
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


_msgpack = msgpack_decoder(_Body)
_json = json_decoder(_JsonBody)
_any_msgpack = msgspec.msgpack.Decoder(dict[str, Any])
_any_json = json_decoder(dict[str, Any])
_reading: dict[tuple[bool, bool], Any] = {
    (True, True): msgpack_decoder(ChatCompletion),
    (True, False): msgpack_decoder(Completion),
    (False, True): json_decoder(ChatCompletion),
    (False, False): json_decoder(Completion),
}

NULL = Raw(b"\xc0")
_IDS = ("ctx_request_id", "disagg_request_id")


class ContextReply:
    """The reply of a context leg. Raises BadReply when it is not one."""

    def __init__(self, reply: Reply) -> None:
        self._body = reply.body
        self._packed = reply.headers.get("content-type", "").startswith(MSGPACK_TYPE)
        read = self._read(_msgpack) if self._packed else _packed_parts(self._read(_json))
        if not read.choices:
            raise BadReply("The context worker's reply has no choices.")
        self.finish_reason = read.choices[0].finish_reason
        self.params: dict[str, Raw] = read.choices[0].disaggregated_params or {}
        self.usage: Raw = NULL if read.usage is UNSET else read.usage
        self.token_ids: Raw | UnsetType = _present(read.prompt_token_ids)
        self.token_ids_b64: Raw | UnsetType = _present(read.prompt_token_ids_b64)
        self._check()

    @property
    def finished(self) -> bool:
        """Whether this reply is the whole answer: no generation leg is to follow."""
        return self.finish_reason not in PENDING_FINISH_REASONS

    def param(self, name: str) -> Any:
        """One small field of the hand-off, as a value; None if absent."""
        return msgspec.msgpack.decode(self.params[name]) if name in self.params else None

    def whole(self) -> dict[str, Any]:
        """The reply as the client should see it: without the hand-off's fields."""
        body: dict[str, Any] = self._read(_any_msgpack if self._packed else _any_json)
        body.pop("prompt_token_ids", None)
        body.pop("prompt_token_ids_b64", None)
        for choice in body["choices"]:
            choice.pop("disaggregated_params", None)
        return body

    def typed(self, *, chat: bool) -> ChatCompletion | Completion:
        """The reply as its Struct, to make a stream of it."""
        reply: ChatCompletion | Completion = self._read(_reading[self._packed, chat])
        return reply

    def _read(self, decoder: Any) -> Any:
        try:
            return decoder.decode(self._body)
        except MALFORMED as error:
            raise BadReply("The context worker's reply could not be read.") from error

    def _check(self) -> None:
        """A pending reply must carry ids, or nobody could find its state (trtllm-wire.md 1.4, step 6)."""
        if self.finished:
            return
        for name in _IDS:
            if _present(self.params.get(name, UNSET)) is UNSET:
                raise BadReply("The context worker's reply carries no hand-off.")


def _present(part: Raw | UnsetType) -> Raw | UnsetType:
    return UNSET if part is UNSET or bytes(memoryview(part)[:1]) == b"\xc0" else part


def _packed_parts(read: _JsonBody) -> _Body:
    """A JSON reply's parts as msgpack."""
    encode = msgspec.msgpack.encode
    return _Body(
        choices=[
            _Choice(
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
