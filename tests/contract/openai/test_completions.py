"""Completions: prompts in every form, echo and log probabilities as evaluation tools want them, best_of, suffix."""

import math
from typing import Any

import pytest

from tests.contract.material import validator
from tests.contract.openai.conftest import COMPLETIONS, Api


def test_reply_is_what_the_public_document_says(api: Api) -> None:
    """A whole reply fits the document's schema."""
    reply = api.completion(logprobs=2)

    assert [error.message for error in validator("CreateCompletionResponse").iter_errors(reply)] == []
    assert reply["id"].startswith("cmpl-")


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [
        ("a", 1),
        (["a"], 1),
        (["a", "b", "c"], 3),
        ([5, 6, 7], 1),
        ([[5, 6], [7]], 2),
        ("", 1),
        ([""], 1),
        (["a", ""], 2),
    ],
)
def test_prompt_takes_every_form(api: Api, prompt: Any, choices: int) -> None:
    """Text, texts, ids and lists of ids; an empty prompt is the model's own beginning."""
    assert [choice["index"] for choice in api.completion(prompt)["choices"]] == list(range(choices))


@pytest.mark.parametrize("prompt", [[], [[]], {}, 5, ["a", 1], [1, "a"], [1.5], [-1], [2**40], [True], [["a"]]])
def test_prompt_that_is_none_is_refused(api: Api, prompt: Any) -> None:
    """Anything else is a 400 that names the prompt."""
    assert api.refusal(COMPLETIONS, prompt=prompt)["param"] == "prompt"


def test_choices_of_several_prompts_are_numbered_through(api: Api) -> None:
    """Choice number `prompt * n + choice`, and each prompt is counted once."""
    alone = api.completion("a")["usage"]["prompt_tokens"]
    reply = api.completion(["a", "a"], n=2, max_tokens=2, ignore_eos=True)

    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (2 * alone, 8)


def test_limit_is_16_unless_given(api: Api) -> None:
    """OpenAI's default of this endpoint."""
    assert api.completion(max_tokens=None, ignore_eos=True)["usage"]["completion_tokens"] == 16


def test_echo_stands_before_the_answer(api: Api) -> None:
    """The prompt's text, then what follows; with no tokens asked for, the prompt alone."""
    assert api.completion("abc", echo=True)["choices"][0]["text"].startswith("abc")
    assert api.completion("abc", echo=True, max_tokens=0)["choices"][0]["text"] == "abc"


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echoed_logprobs_are_what_evaluation_tools_sum_up(api: Api, max_tokens: int) -> None:
    """Four lists of one length, the first token without a value, every other finite: lm-eval's loglikelihood."""
    choice = api.completion([[72, 101, 108, 112]], echo=True, logprobs=1, max_tokens=max_tokens, temperature=0)[
        "choices"
    ][0]
    first, *values = choice["logprobs"]["token_logprobs"]

    assert {len(listed) for listed in choice["logprobs"].values()} == {4 + max_tokens}
    assert first is None
    assert all(math.isfinite(value) and value <= 0 for value in values)
    assert choice["logprobs"]["text_offset"] == sorted(choice["logprobs"]["text_offset"])


def test_logprobs_have_the_chosen_token_among_the_most_likely(api: Api) -> None:
    """At each position the map holds what was chosen, and the offsets point into the text."""
    choice = api.completion("The quick brown", logprobs=3, temperature=0)["choices"][0]
    lists = choice["logprobs"]

    assert all(token in tops for token, tops in zip(lists["tokens"], lists["top_logprobs"], strict=True))
    assert "".join(token for token in lists["tokens"] if not token.startswith("bytes:")) in choice[
        "text"
    ] or "bytes:" in str(lists)


def test_best_of_pays_for_all(api: Api) -> None:
    """Only the best are answered, all are counted; they cannot be streamed, nor be fewer than n."""
    reply = api.completion(best_of=3, max_tokens=2, ignore_eos=True)

    assert (len(reply["choices"]), reply["usage"]["completion_tokens"]) == (1, 6)
    assert api.refusal(COMPLETIONS, best_of=2, stream=True)["param"] == "best_of"
    assert api.refusal(COMPLETIONS, best_of=1, n=2)["param"] == "best_of"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "</end>"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"echo": "yes"}, "echo"),
    ],
)
def test_what_is_not_served_is_named(api: Api, fields: dict[str, Any], param: str) -> None:
    """Refused by name, never dropped."""
    assert api.refusal(COMPLETIONS, **fields)["param"] == param


def test_too_many_sequences_are_refused_at_once(api: Api) -> None:
    """One request runs at most 128 sequences."""
    assert api.refusal(COMPLETIONS, prompt=["a"] * 129)["param"] == "prompt"


def test_stream_numbers_its_choices(api: Api) -> None:
    """Each prompt's text comes under its own index."""
    indices = {choice["index"] for chunk in api.completion_chunks(["a", "b"]) for choice in chunk["choices"]}

    assert indices == {0, 1}
