"""The frames of one request: its view encoded once for each leg, in the form each worker takes.

The client's `messages` and `tools` are turned once per form into bytes that stand in a frame as they are; after that a leg's frame
is one encoding pass over the small fields, whatever the size of the prompt.
"""

from typing import Any

from msgspec import UNSET, structs

from gateway.packed import last_of
from gateway.spliced_frame import SPLICED_BYTES, RequestFrame, spliced_frame
from schemas.codec import AnyChatView, AnyCompletionView, deferred_form, encode_frame, plain_form
from schemas.dialect import Dialect, unify
from schemas.openai.chat import CHAT_VIEWS


class Frames:
    """Makes the frames of a request. Constructing it settles the view (`dialect.unify`); raises ServingError for a bad part."""

    def __init__(self, view: AnyChatView | AnyCompletionView) -> None:
        unify(view)
        self.chat = isinstance(view, CHAT_VIEWS)
        self._view: Any = view
        self._parts: dict[bool, tuple[Any, Any]] = {}
        self._form: bool | None = None  # The one the view has now: deferred, plain, or as it was sent.
        self._as_sent = (view.messages, view.tools) if isinstance(view, CHAT_VIEWS) else None
        self.prompts = 1 if self.chat else plain_form(view)
        self._large = self._has_large_parts()

    @property
    def prompt_bytes(self) -> int:
        """The size of the client's messages or prompt, in bytes."""
        return len(memoryview(self._as_sent[0] if self._as_sent else self._view.prompt))

    def frame(self, dialect: Dialect, *, large: bool = False, **changes: Any) -> RequestFrame:
        """The view as one frame for a worker of this dialect, with some fields changed for this leg only.

        A change may be UNSET (the field is left out) or Raw msgpack (it stands in the frame as it is). `large` says that some may
        be large: whoever has them knows, and looking at each would cost small requests more than it saves large ones.
        Raises ServingError when the client asked for something this kind of worker cannot do.
        """
        self._use_form(deferred=dialect.deferred)
        view = self._view
        if dialect.unknown_chat if self.chat else dialect.unknown_completion:
            # What one leg's worker does not know, the other leg's may: it is taken from a copy.
            view = structs.replace(view)
            dialect.fit(view)
        if changes:
            view = structs.replace(view, **changes)
        return spliced_frame(view) if large or self._large else encode_frame(view)

    def last_message(self, dialect: Dialect) -> Any:
        """A chat's messages with all but the last left out, in the form this dialect has; for a leg that has the prompt as ids."""
        if self._as_sent is None:
            raise RuntimeError("Only a chat has messages.")
        return last_of(self._as_sent[0], deferred=dialect.deferred)

    def _use_form(self, *, deferred: bool) -> None:
        if self._as_sent is None:
            return
        if deferred == self._form:
            return
        if deferred not in self._parts:
            self._view.messages, self._view.tools = self._as_sent
            (deferred_form if deferred else plain_form)(self._view)
            self._parts[deferred] = (self._view.messages, self._view.tools)
        self._view.messages, self._view.tools = self._parts[deferred]
        self._form = deferred

    def _has_large_parts(self) -> bool:
        tools: Any = UNSET if self._as_sent is None else self._as_sent[1]
        return self.prompt_bytes > SPLICED_BYTES or (tools is not UNSET and len(memoryview(tools)) > SPLICED_BYTES)
