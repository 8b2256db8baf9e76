"""Chat completions: roles, parts, limits, choices, log probabilities."""

from typing import Any

import pytest

from tests.contract.material import validator
from tests.contract.openai.conftest import CHAT, Api, user

CALL = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
ANSWER = {"role": "tool", "tool_call_id": "call_1", "content": "12:00"}


def test_reply_is_what_the_public_document_says(api: Api) -> None:
    """A whole reply fits the document's schema, and its usage adds up."""
    reply = api.chat()
    usage = reply["usage"]

    assert [error.message for error in validator("CreateChatCompletionResponse").iter_errors(reply)] == []
    assert reply["id"].startswith("chatcmpl-")
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Be brief."}, user("Hi.")],
        [{"role": "developer", "content": "Be brief."}, user("Hi.")],
        [user("What time is it?"), {"role": "assistant", "content": None, "tool_calls": [CALL]}, ANSWER],
        [user("What time is it?"), {"role": "assistant", "tool_calls": [CALL]}, ANSWER],
        [user("a"), {"role": "function", "name": "clock", "content": "12:00"}],
        [user("a"), {"role": "assistant", "content": "b", "reasoning_content": "because"}, user("c")],
        [
            user("a"),
            {"role": "assistant", "content": "b", "refusal": None, "audio": None, "annotations": []},
            user("c"),
        ],
        [{**user("a"), "name": "ada", "an_extension": {"of": ["the", "client"]}}],
    ],
    ids=["system", "developer", "null content", "no content", "function", "reasoning", "echoed answer", "extra keys"],
)
def test_conversation_of_every_kind_is_answered(api: Api, messages: list[dict[str, Any]]) -> None:
    """What clients send as a conversation is one."""
    assert api.chat(*messages)["choices"][0]["message"]["role"] == "assistant"


def test_text_parts_are_text(api: Api) -> None:
    """A message in parts is read as their texts, whatever keys of the client's stand beside them."""
    parts = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]

    assert api.chat(user(parts))["usage"]["prompt_tokens"] == api.chat(user("a\nb"))["usage"]["prompt_tokens"]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "hologram"])
def test_parts_that_cannot_be_read_are_refused_by_place(api: Api, kind: str) -> None:
    """A text model says which part it cannot read, and fetches nothing."""
    parts = [{"type": "text", "text": "a"}, {"type": kind, kind: {"url": "http://127.0.0.1:9/"}}]

    assert api.refusal(CHAT, messages=[user(parts)])["param"] == "messages[0].content[1].type"


def test_newer_name_of_the_limit_wins(api: Api) -> None:
    """`max_completion_tokens` counts where both names are sent; either alone does too."""
    counted = [
        api.chat(ignore_eos=True, **limits)["usage"]["completion_tokens"]
        for limits in ({"max_tokens": 2}, {"max_tokens": 9, "max_completion_tokens": 2})
    ]

    assert counted == [2, 2]


def test_omitted_limit_is_what_the_context_leaves(api: Api) -> None:
    """Without a limit an answer ends by itself, or where the context does."""
    reply = api.chat(user("Say hi."), max_tokens=None, stop=["e", " "])

    assert reply["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_context_overflow_is_told_before_anything_is_streamed(api: Api, stream: bool) -> None:
    """A conversation that does not fit is a 400 with the code clients look for."""
    error = api.refusal(CHAT, messages=[user("hello " * 20_000)], stream=stream)

    assert (error["code"], error["type"]) == ("context_length_exceeded", "invalid_request_error")


def test_every_choice_has_its_index(api: Api) -> None:
    """`n` choices are numbered; tokens of all of them are paid for."""
    reply = api.chat(n=3, max_tokens=2, ignore_eos=True)

    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert reply["usage"]["completion_tokens"] == 6


def test_best_of_pays_for_all_and_answers_with_the_best(api: Api) -> None:
    """As TensorRT-LLM's chat does."""
    reply = api.chat(n=1, best_of=3, max_tokens=2, ignore_eos=True)

    assert (len(reply["choices"]), reply["usage"]["completion_tokens"]) == (1, 6)


def test_seed_repeats_an_answer(api: Api) -> None:
    """The same seed gives the same text, up to the ends of int64."""
    for seed in (7, -(2**63), 2**63 - 1):
        first, second = (api.chat(seed=seed, temperature=1.0)["choices"][0]["message"] for _ in range(2))
        assert first["content"] == second["content"]


@pytest.mark.parametrize("stop", ["e", ["e", "zzz"], None, [], "", [""]])
def test_stop_takes_every_form(api: Api, stop: Any) -> None:
    """Text, a list, null, and nothing at all: the answer never holds a stop text."""
    content = api.chat(stop=stop, temperature=0)["choices"][0]["message"]["content"]

    assert "e" not in content or "e" not in (stop or [])


def test_logprobs_stand_for_every_token_and_are_aligned_with_the_text(api: Api) -> None:
    """The tokens' bytes are the answer's, the alternatives are as many as asked for, and all are finite."""
    choice = api.chat(logprobs=True, top_logprobs=3, temperature=0, stop=None)["choices"][0]
    entries = choice["logprobs"]["content"]
    said = b"".join(bytes(entry["bytes"]) for entry in entries)

    assert said.startswith(choice["message"]["content"].encode())
    assert {len(entry["top_logprobs"]) for entry in entries} == {3}
    assert all(-9999.0 <= entry["logprob"] <= 0 for entry in entries)


@pytest.mark.parametrize("fields", [{}, {"logprobs": False}, {"logprobs": None}])
def test_logprobs_are_null_unless_asked_for(api: Api, fields: dict[str, Any]) -> None:
    """Without the switch there are none."""
    assert api.chat(**fields)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"logit_bias": {"0": 101}}, "logit_bias[...]"),
        ({"logit_bias": {"no token": 1}}, "logit_bias"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"stop_token_ids": [2**30]}, "stop_token_ids"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ],
)
def test_wrong_field_is_named(api: Api, fields: dict[str, Any], param: str) -> None:
    """A field out of its bounds, in the wrong company, or not served here is a 400 that names it."""
    assert api.refusal(CHAT, **fields)["param"] == param


def test_unknown_model_is_a_404(api: Api) -> None:
    """With the code that clients look for."""
    assert api.chat(model="no-such-model", status=404)["error"]["code"] == "model_not_found"


def test_sampling_extensions_are_taken(api: Api) -> None:
    """What TensorRT-LLM adds to OpenAI's sampling works here too."""
    extensions: dict[str, Any] = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "ignore_eos": True,
    }

    assert api.chat(**extensions, max_tokens=3)["usage"]["completion_tokens"] == 3


ALPHABETS = {
    "rtl": "שלום عربي \u202e",
    "combining": "e\u0301",
    "emoji": "👩‍👩‍👧‍👦",
    "nul": "a\x00b",
    "bom": "\ufeffx",
    "cjk": "東京",
}


@pytest.mark.parametrize("text", ALPHABETS.values(), ids=ALPHABETS)
def test_text_of_every_alphabet_is_taken(api: Api, text: str) -> None:
    """Whatever Unicode a client sends is a prompt."""
    assert api.chat(user(text))["usage"]["prompt_tokens"] > 0


def test_lone_surrogate_is_a_400(api: Api) -> None:
    """JSON can say half a character, UTF-8 cannot."""
    body = b'{"model":"m","messages":[{"role":"user","content":"\\ud83d"}]}'
    reply = api.http.post(CHAT, content=body, headers={"content-type": "application/json"})

    assert (reply.status_code, set(reply.json()["error"])) == (400, {"message", "type", "param", "code"})
