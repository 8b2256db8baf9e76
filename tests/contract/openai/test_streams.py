"""Streams: one role, one finish, one terminal; usage where it was asked for; text that is the whole answer's."""

from collections import Counter
from typing import Any

import pytest

from tests.contract.material import validator
from tests.contract.openai.conftest import CHAT, COMPLETIONS, Api

WITH_USAGE = {"stream_options": {"include_usage": True}}


def choices(chunks: list[Any]) -> list[Any]:
    """All choices of all records, in order."""
    return [choice for chunk in chunks for choice in chunk["choices"]]


def text_of(chunks: list[Any]) -> str:
    """What a chat stream says."""
    return "".join(choice["delta"].get("content") or "" for choice in choices(chunks))


def test_chunks_are_what_the_public_document_says(api: Api) -> None:
    """Every record fits the document's schema; id, created and model are the same in all of them."""
    chunks = api.chat_chunks(logprobs=True, top_logprobs=2, **WITH_USAGE)
    check = validator("CreateChatCompletionStreamResponse")

    assert [error.message for chunk in chunks for error in check.iter_errors(chunk)] == []
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


def test_role_comes_first_and_once(api: Api) -> None:
    """The first delta of each choice has the role, no other has."""
    deltas: dict[int, list[dict[str, Any]]] = {}
    for choice in choices(api.chat_chunks(n=2, ignore_eos=True)):
        deltas.setdefault(choice["index"], []).append(choice["delta"])

    assert sorted(deltas) == [0, 1]
    for first, *others in deltas.values():
        assert first["role"] == "assistant"
        assert not any("role" in other for other in others)


def test_every_choice_finishes_once(api: Api) -> None:
    """A finish reason stands in the last chunk of each choice, and in no other."""
    finished = Counter(choice["index"] for choice in choices(api.chat_chunks(n=3)) if choice["finish_reason"])

    assert finished == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"seed": 5}, {"temperature": 0, "stop": ["a"]}])
def test_stream_says_what_the_whole_answer_does(api: Api, fields: dict[str, Any]) -> None:
    """Streamed or not, the same request has the same text and the same end."""
    whole = api.chat(max_tokens=24, **fields)["choices"][0]
    chunks = api.chat_chunks(max_tokens=24, **fields)

    assert text_of(chunks) == whole["message"]["content"]
    assert choices(chunks)[-1]["finish_reason"] == whole["finish_reason"]


def test_no_character_is_broken(api: Api) -> None:
    """However tokens cut characters, every record holds whole ones; one the limit cuts is left out."""
    for limit in range(1, 12):
        assert "\ufffd" not in text_of(api.chat_chunks(max_tokens=limit, temperature=0, ignore_eos=True))


@pytest.mark.parametrize("ask", [Api.chat_chunks, Api.completion_chunks])
def test_usage_comes_last_and_only_when_asked_for(api: Api, ask: Any) -> None:
    """Asked for, it is the last record, without choices; not asked for, no record has it. Any: either endpoint's stream."""
    *before, last = ask(api, ignore_eos=True, **WITH_USAGE)

    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 8)
    assert all(chunk["usage"] is None for chunk in before)
    assert not any("usage" in chunk for chunk in ask(api, ignore_eos=True))
    assert not any("usage" in chunk for chunk in ask(api, stream_options={"include_usage": False}))


@pytest.mark.parametrize("ask", [Api.chat_chunks, Api.completion_chunks])
def test_continuous_usage_is_in_every_record(api: Api, ask: Any) -> None:
    """The counts grow from record to record, and the last is the whole. Any: either endpoint's stream."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [chunk["usage"]["completion_tokens"] for chunk in ask(api, stream_options=options, ignore_eos=True)]

    assert counts == sorted(counts)
    assert counts[-1] == 8


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_no_proxy_may_hold_a_stream_back(api: Api, path: str) -> None:
    """Every stream says so in its headers, and carries the request's id."""
    body = {
        "model": api.model,
        "messages": [{"role": "user", "content": "a"}],
        "prompt": "a",
        "max_tokens": 2,
        "stream": True,
    }
    body.pop("prompt" if path == CHAT else "messages")
    headers = api.http.post(path, json=body, headers={"X-Request-ID": "of-the-client"}).headers

    assert (headers["x-accel-buffering"], headers["cache-control"]) == ("no", "no-cache")
    assert headers["x-request-id"] == "of-the-client"


def test_obfuscation_is_taken_and_adds_nothing(api: Api) -> None:
    """Clients ask for padding that only matters to eavesdroppers of OpenAI's own."""
    assert text_of(api.chat_chunks(stream_options={"include_obfuscation": True}, ignore_eos=True))
