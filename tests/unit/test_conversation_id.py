"""Which conversation a request belongs to, and who is told."""

from typing import Any

import msgspec
import pytest

from gateway.conversation import HEADERS, settle_conversation
from schemas.codec import AnyChatView, read_chat_view
from schemas.openai.options import ConversationParams
from tests.unit.gateway_fakes import CHAT, chat, rig


def view(**fields: Any) -> AnyChatView:
    """The gateway's view of a chat request with these fields."""
    return read_chat_view(msgspec.json.encode(chat(**fields)))[0]


def test_the_body_counts_first() -> None:
    """What stands in the body is the id, whatever the headers say, and is sent on as it came."""
    request = view(conversation_params={"conversation_id": " talk "})
    found = settle_conversation(request, {b"x-session-id": b"other"})

    assert found == "talk"
    assert request.conversation_params == ConversationParams(conversation_id=" talk ")


@pytest.mark.parametrize("first", range(len(HEADERS)))
def test_headers_count_in_their_order(first: int) -> None:
    """The first of the four that is not blank is the id, and it is put where workers look."""
    headers = dict.fromkeys(HEADERS[:first], b" ") | {name: b" " + name for name in HEADERS[first:]}
    request = view()
    found = settle_conversation(request, headers)

    assert found == HEADERS[first].decode()
    assert request.conversation_params == ConversationParams(conversation_id=found)


@pytest.mark.parametrize("params", [None, {}, {"conversation_id": None}, {"conversation_id": " "}])
def test_an_empty_id_is_none(params: Any) -> None:
    """A body that names no conversation leaves it to the headers."""
    assert settle_conversation(view(conversation_params=params), {}) is None
    assert settle_conversation(view(conversation_params=params), {b"x-session-affinity": b"a"}) == "a"


async def test_the_id_is_carried_for_routers() -> None:
    """Whoever chooses the workers finds the id beside the request."""
    gateway = rig()
    await gateway.client.post(CHAT, chat(), x_correlation_id="talk")
    await gateway.client.post(CHAT, chat())

    assert [call.conversation_id for call in gateway.backend.calls] == ["talk", None]
