"""What a context worker answered."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec import UNSET, Raw, UnsetType

from gateway.context_body import NULL, parts_of, present, text_of, typed_of, whole_of
from gateway.links.base import BadReply, Reply
from gateway.spliced_frame import SPLICED_BYTES
from schemas.codec import MALFORMED, MSGPACK_TYPE
from schemas.disagg import PENDING_FINISH_REASONS
from schemas.openai.chat import ChatCompletion
from schemas.openai.completions import Completion

_IDS: Final = ("ctx_request_id", "disagg_request_id")


class ContextReply:
    """The reply of a context leg. Raises BadReply when it is not one."""

    def __init__(self, reply: Reply) -> None:
        self._body = reply.body
        self._packed = reply.headers.get("content-type", "").startswith(MSGPACK_TYPE)
        read = self._read(parts_of)
        if not read.choices:
            raise BadReply("The context worker's reply has no choices.")
        self.finish_reason = read.choices[0].finish_reason
        self.params: dict[str, Raw] = read.choices[0].disaggregated_params or {}
        self.usage: Raw = NULL if read.usage is UNSET else read.usage
        self.token_ids: Raw | UnsetType = present(read.prompt_token_ids)
        self.token_ids_b64: Raw | UnsetType = present(read.prompt_token_ids_b64)
        self._check()

    @property
    def large(self) -> bool:
        """Whether some of it may be too large to be copied."""
        return len(self._body) > SPLICED_BYTES

    @property
    def finished(self) -> bool:
        """Whether this reply is the whole answer: no generation leg is to follow."""
        return self.finish_reason not in PENDING_FINISH_REASONS

    def param(self, name: str) -> Any:
        """A text of the hand-off, or a list of them; None if absent. Raises BadReply for anything else."""
        if name not in self.params:
            return None
        try:
            return text_of(self.params[name])
        except MALFORMED as error:
            raise BadReply("The context worker's hand-off could not be read.") from error

    def whole(self) -> dict[str, Any]:
        """The reply as the client should see it: without the hand-off's fields."""
        body: dict[str, Any] = self._read(whole_of)
        body.pop("prompt_token_ids", None)
        body.pop("prompt_token_ids_b64", None)
        for choice in body["choices"]:
            choice.pop("disaggregated_params", None)
        return body

    def typed(self, *, chat: bool) -> ChatCompletion | Completion:
        """The reply as its Struct, to make a stream of it."""
        reply: ChatCompletion | Completion = self._read(partial(typed_of, chat=chat))
        return reply

    def _read(self, reading: Callable[..., Any]) -> Any:
        try:
            return reading(self._body, packed=self._packed)
        except MALFORMED as error:
            raise BadReply("The context worker's reply could not be read.") from error

    def _check(self) -> None:
        """A pending reply must carry ids, or nobody could find its state (trtllm-wire.md 1.4, step 6)."""
        if self.finished:
            return
        for name in _IDS:
            if present(self.params.get(name, UNSET)) is UNSET:
                raise BadReply("The context worker's reply carries no hand-off.")
