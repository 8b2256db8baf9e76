"""Which conversation a request belongs to: what the client says, in the order stock orchestrators look for it.

Source: trtllm-wire.md 4.3. The body's `conversation_params.conversation_id` counts before any header.
"""

from collections.abc import Mapping
from typing import Final

from schemas.codec import AnyChatView, AnyCompletionView
from schemas.openai.options import ConversationParams

HEADERS: Final = (b"x-session-id", b"x-correlation-id", b"x-session-affinity", b"x-multi-turn-session-id")
"""The headers that may carry the id; the first that is not blank counts."""


def settle_conversation(view: AnyChatView | AnyCompletionView, headers: Mapping[bytes, bytes]) -> str | None:
    """The conversation's id, None without one. One from a header is put into the view, where workers look for it."""
    params = view.conversation_params
    if isinstance(params, ConversationParams) and isinstance(params.conversation_id, str):
        said = params.conversation_id.strip()
        if said:
            return said
    conversation_id = _of_headers(headers)
    if conversation_id is None:
        return None
    view.conversation_params = ConversationParams(conversation_id=conversation_id)
    return conversation_id


def _of_headers(headers: Mapping[bytes, bytes]) -> str | None:
    for name in HEADERS:
        if name in headers and (text := headers[name].strip()):
            return text.decode("latin-1")
    return None
