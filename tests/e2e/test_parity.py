"""Two legs say, token for token, what one worker says."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.conftest import MODEL_MARKS
from tests.e2e.local_fleet import local_fleet, one_worker, two_legs
from tests.e2e.test_sdk import WEATHER

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
GRAMMAR = {"type": "ebnf", "ebnf": 'root ::= ("yes" | "no") ", " [a-z]{3} "."'}
LONG = "The history of the lighthouse on the northern cape is long. " * 25
TURNS = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": "Blue."},
    {"role": "user", "content": "Another one."},
]


def chat(content: Any = "Tell me about the sea.", **fields: Any) -> tuple[str, dict[str, Any]]:
    """A chat request, greedy unless it says otherwise."""
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return "chat", {"messages": messages, "max_tokens": 12, "temperature": 0} | fields


def text(prompt: Any = "Once upon a time", **fields: Any) -> tuple[str, dict[str, Any]]:
    """A completions request, greedy unless it says otherwise."""
    return "text", {"prompt": prompt, "max_tokens": 12, "temperature": 0} | fields


def extra(**fields: Any) -> dict[str, Any]:
    """Fields of TensorRT-LLM, which the SDK passes on unread."""
    return {"extra_body": fields}


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "short": chat("Hi"),
    "one word": chat("x", max_tokens=4),
    "usual": chat(),
    "long answer": chat("Write a story about a fox.", max_tokens=48),
    "long prompt": chat(LONG),
    "long prompt, long answer": chat(LONG, max_tokens=32),
    "several turns": chat(TURNS),
    "system prompt": chat(
        [{"role": "developer", "content": "Answer in French."}, {"role": "user", "content": "Hello"}]
    ),
    "multi-byte prompt": chat("東京はどこですか？ 🚀🚀 Ünïcödé"),
    "multi-byte answer": chat("Repeat after me: 🚀🎉🚀🎉 ärger 東京", max_tokens=24),
    "one token": chat(max_tokens=1),
    "two tokens": chat(max_tokens=2),
    "no limit but the end": chat("Say only: ok", max_tokens=64),
    "end token first": chat(logit_bias={"2": 100}),
    "ignored end token": chat(max_tokens=16, **extra(ignore_eos=True)),
    "minimum length": chat("Say ok", max_tokens=16, **extra(min_tokens=10)),
    "stop at a space": chat(stop=" "),
    "stop list": chat(stop=["zzz", "the", "."]),
    "stop kept in the text": chat(stop=" ", **extra(include_stop_str_in_output=True)),
    "stop token id": chat(**extra(stop_token_ids=[28, 30, 32, 110, 228])),
    "json object": chat("Answer in JSON.", response_format={"type": "json_object"}, max_tokens=24),
    "json schema": chat("Who are you?", response_format=AS_SCHEMA, max_tokens=48),
    "json schema, sampled": chat("Who are you?", response_format=AS_SCHEMA, max_tokens=48, temperature=1, seed=3),
    "seed 1": chat(temperature=1, seed=1),
    "seed 2": chat(temperature=1, seed=2),
    "seed of 63 bits": chat(temperature=1, seed=2**63 - 1),
    "seed below zero": chat(temperature=1, seed=-5),
    "top_p": chat(temperature=1, seed=4, top_p=0.5),
    "top_k": chat(temperature=1, seed=4, **extra(top_k=5)),
    "min_p": chat(temperature=1, seed=4, **extra(min_p=0.2)),
    "repetition penalty": chat(max_tokens=24, **extra(repetition_penalty=1.3)),
    "presence penalty": chat(max_tokens=24, presence_penalty=1.5),
    "frequency penalty": chat(max_tokens=24, frequency_penalty=1.5),
    "penalty and seed": chat(max_tokens=24, temperature=0.9, seed=8, **extra(repetition_penalty=1.2)),
    "log probabilities": chat(logprobs=True, top_logprobs=3),
    "log probabilities, sampled": chat(logprobs=True, top_logprobs=1, temperature=1, seed=6),
    "tool call at once": chat("Weather in Paris?", tools=WEATHER, tool_choice="required", max_tokens=64),
    "tool on offer": chat("Weather in Paris?", tools=WEATHER, max_tokens=24),
    "tool on offer, json schema": chat("Weather?", tools=WEATHER, response_format=AS_SCHEMA, max_tokens=48),
    "tool named": chat(
        "Weather?",
        tools=WEATHER,
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=64,
    ),
    "completion": text(),
    "completion, sampled": text(temperature=1, seed=9),
    "completion of ids": text([84, 104, 101, 32, 115]),
    "completion, multi-byte": text("海は青く、", max_tokens=16),
    "completion, stop": text(stop=["\n", ","]),
    "completion, log probabilities": text(logprobs=2),
    "echo": text(echo=True),
    "echo, log probabilities": text(echo=True, logprobs=2),
    "echo alone, log probabilities": text(echo=True, logprobs=1, max_tokens=0),
}


class Answers:
    """What one fleet says."""

    def __init__(self, url: str) -> None:
        self._client = OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=120)
        self._model = self._client.models.list().data[0].id

    def close(self) -> None:
        self._client.close()

    def whole(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The whole reply, without what differs from call to call."""
        reply: Any = self._create(kind)(model=self._model, **fields)
        return {"usage": _counts(reply.usage), "choice": _without_ids(reply.choices[0].to_dict())}

    def streamed(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        """A stream's text, tool arguments, finish reason and usage."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks: list[Any] = list(self._create(kind)(model=self._model, **fields, **options))
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
        return {
            "text": "".join(_text(choice) for choice in choices),
            "finish": [choice.finish_reason for choice in choices if choice.finish_reason],
            "usage": _counts(chunks[-1].usage),
        }

    def _create(self, kind: str) -> Any:
        return self._client.chat.completions.create if kind == "chat" else self._client.completions.create


def _counts(usage: Any) -> tuple[int, int, int]:
    """Token counts, without those of the cache: what a worker has cached depends on what it served before."""
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def _text(choice: Any) -> str:
    if not hasattr(choice, "delta"):
        return str(choice.text)
    calls = choice.delta.tool_calls or []
    return (choice.delta.content or "") + "".join(call.function.arguments or "" for call in calls)


def _without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    for call in choice.get("message", {}).get("tool_calls") or []:
        call.pop("id")
    return choice


REAL = pytest.param(("llama_cpp", "http"), id="llama_cpp", marks=[*MODEL_MARKS, pytest.mark.slow])
SCRIPTED = [
    pytest.param(("scripted", "http"), id="scripted"),
    pytest.param(("scripted", "grpc"), id="scripted-grpc"),
]


@pytest.fixture(scope="module", params=[*SCRIPTED, REAL])
def fleets(request: pytest.FixtureRequest) -> Iterator[tuple[Answers, Answers]]:
    """The same engine twice: as one worker over HTTP, and as two legs over the link in question."""
    engine, link = request.param
    with local_fleet(*one_worker(engine)) as alone, local_fleet(*two_legs(engine, "--link", link)) as pair:
        answers = Answers(alone.url), Answers(pair.url)
        yield answers
        for each in answers:
            each.close()
        failed = sum(pair.metric(url, "packrelay_worker_handoff_errors_total") for url in pair.workers.values())
        assert failed == 0


@pytest.mark.parametrize("name", REQUESTS)
def test_two_legs_answer_as_one_worker(fleets: tuple[Answers, Answers], name: str) -> None:
    """Text, tokens, finish reason, log probabilities and usage are equal."""
    alone, pair = fleets

    assert pair.whole(*REQUESTS[name]) == alone.whole(*REQUESTS[name])


@pytest.mark.parametrize("name", REQUESTS)
def test_two_legs_stream_as_one_worker(fleets: tuple[Answers, Answers], name: str) -> None:
    """A stream through two legs carries what a stream of one worker does."""
    alone, pair = fleets

    assert pair.streamed(*REQUESTS[name]) == alone.streamed(*REQUESTS[name])


@pytest.mark.parametrize("fleets", [REAL], indirect=True)
def test_two_legs_follow_a_grammar_as_one_worker(fleets: tuple[Answers, Answers]) -> None:
    """The grammar's position after the first token is where one worker's would be. The scripted engine has no grammars."""
    alone, pair = fleets
    request = chat("Is it so?", response_format=GRAMMAR)

    assert pair.whole(*request) == alone.whole(*request)
    assert pair.streamed(*request) == alone.streamed(*request)


@pytest.mark.parametrize("cut", range(1, 5))
def test_stop_string_over_the_seam(fleets: tuple[Answers, Answers], cut: int) -> None:
    """A stop string that begins in the first token (the context leg's) and ends in a later one is found."""
    alone, pair = fleets
    kind, fields = chat("Write a story about a fox.", max_tokens=24)
    said = alone.whole(kind, fields)["choice"]["message"]["content"]
    stopped = fields | {"stop": said[cut : cut + 7]}

    assert pair.whole(kind, stopped) == alone.whole(kind, stopped)
    assert pair.whole(kind, stopped)["choice"]["message"]["content"] == said[: said.index(stopped["stop"])]
