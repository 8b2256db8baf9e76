"""What a program that uses `gateway.links` is promised: both links are links, and their answers have types. Never run."""

from collections.abc import AsyncIterator
from typing import assert_type

from gateway.links.base import Deadlines, Link, Reply, ReplyStream
from gateway.links.event_stream import EventStream
from gateway.links.grpc import GrpcLink
from gateway.links.http import HttpLink, HttpReplyStream
from schemas.events import Event
from schemas.openai.chat import ChatCompletionRequest, ChatMessage


def both_are_links(http: HttpLink, grpc: GrpcLink) -> list[Link]:
    """Either link can stand where one is wanted."""
    return [http, grpc]


def a_reply_is_read_as_a_stream(reply: HttpReplyStream) -> ReplyStream:
    """What the HTTP link streams is what the contract says."""
    return reply


async def a_link_is_called(link: Link, frame: bytes, deadlines: Deadlines) -> None:
    """A whole reply, and one that is read as it comes."""
    reply = await link.call("/v1/chat/completions", frame, {}, deadlines)
    assert_type(reply, Reply)
    assert_type(reply.status, int)
    assert_type(reply.body, bytes)
    stream = await link.stream("/v1/chat/completions", frame, {}, deadlines)
    assert_type(stream, ReplyStream)
    assert_type(await stream.read(), bytes)
    assert_type(await link.get("/health", deadlines), Reply)


async def events_are_typed(url: str, frame: bytes) -> None:
    """Over gRPC a program gets the events themselves."""
    async with GrpcLink(url) as link:
        assert_type(link, GrpcLink)
        async with await link.events("/v1/chat/completions", frame) as events:
            assert_type(events, EventStream)
            assert_type(aiter(events), AsyncIterator[Event])
            assert_type(await events.read(), list[Event])


def a_request_is_made_by_keyword() -> ChatCompletionRequest:
    """What is required must be given, and nothing is given by position."""
    assert_type(ChatMessage(role="user", content="hi").role, str)
    # An ignore that is not needed is an error too, so these hold both ways.
    ChatCompletionRequest(model="m")  # type: ignore[call-arg]  # no messages
    ChatMessage("user")  # type: ignore[call-arg]  # by position
    return ChatCompletionRequest(model="m", messages=[ChatMessage(role="user", content="hi")])
