"""The checks that cases name. Each asserts one fact about an answer; those called `if200_` only about a success.

`Exchange` is what they look at: the case, its answer, and the means to ask again.
"""

import base64
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import jsonschema
import msgspec

from tests.contract.conformance.case import Case
from tests.contract.conformance.wire import Answer, Client
from tests.contract.material import validator

CHAT = {"model": "$MODEL", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
LEAK = re.compile(rb'Traceback \(most recent|File "/|site-packages|Exception in ASGI')


class Exchange(msgspec.Struct, frozen=True):
    """A case and its answer; `seconds` is how long that took."""

    case: Case
    answer: Answer
    gateway: Client
    worker: Client
    seconds: float

    def again(self, client: Client | None = None) -> Answer:
        """The same request once more."""
        return (client or self.gateway).send(self.case.request)

    def reply(self) -> Any:
        """The answer's body."""
        return self.answer.json()


Check = Callable[..., None]
"""A check: the exchange, then the arguments that the case gives."""


def run(exchange: Exchange) -> None:
    """Every check of a case, its status first."""
    expect, status = exchange.case.expect, exchange.answer.status
    refused_without_words = status == 0 and exchange.answer.closed and "raw" in exchange.case.request
    assert not expect.status or status in expect.status or refused_without_words, exchange.answer.body[:200]
    assert expect.preferred_status in (None, status)
    for name, *arguments in expect.auto:
        if name.startswith("if200"):
            if status == 200:
                _CHECKS[name](exchange, *arguments)
        else:
            _CHECKS[name](exchange, *arguments)


def at(value: Any, path: str) -> Any:
    """The part of a JSON value at a dotted path."""
    for place in path.split("."):
        value = value[int(place)] if isinstance(value, list) else value[place]
    return value


# --- the server ---


def no_traceback(exchange: Exchange) -> None:
    assert LEAK.search(exchange.answer.body) is None


def alive(exchange: Exchange) -> None:
    assert exchange.gateway.send({"method": "GET", "path": "/v1/models"}).status == 200
    headers = {"Content-Type": "application/json"}
    request = {"method": "POST", "path": "/v1/chat/completions", "headers": headers, "body": CHAT}
    assert exchange.gateway.send(request).status == 200


def max_seconds(exchange: Exchange, seconds: float) -> None:
    assert exchange.seconds <= seconds


def raw_contains(exchange: Exchange, text: str) -> None:
    assert text.encode() in exchange.answer.raw


def raw_not_contains(exchange: Exchange, text: str) -> None:
    assert text.lower().encode() not in exchange.answer.raw.lower()


def raw_eof(exchange: Exchange) -> None:
    assert exchange.answer.closed


def header(exchange: Exchange, name: str, pattern: str) -> None:
    assert re.search(pattern, exchange.answer.headers.get(name, ""))


def header_absent(exchange: Exchange, name: str) -> None:
    assert name not in exchange.answer.headers


def header_if(exchange: Exchange, status: int, name: str, part: str) -> None:
    assert exchange.answer.status != status or part in exchange.answer.headers.get(name, "")


def redirect(exchange: Exchange) -> None:
    location = exchange.answer.headers.get("location", "/")
    assert exchange.answer.status not in (307, 308) or location.startswith("/")


def error_shape(exchange: Exchange) -> None:
    assert validator("ErrorResponse").is_valid(exchange.reply()), exchange.answer.body
    assert exchange.reply()["error"]["message"]


# --- whole replies ---


def is_json(exchange: Exchange) -> None:
    exchange.reply()


def strict_json(exchange: Exchange) -> None:
    msgspec.json.decode(exchange.answer.body)


def path_eq(exchange: Exchange, path: str, value: Any) -> None:
    assert at(exchange.reply(), path) == value


def path_in(exchange: Exchange, path: str, values: list[Any]) -> None:
    assert at(exchange.reply(), path) in values


def path_exists(exchange: Exchange, path: str) -> None:
    at(exchange.reply(), path)


def path_min(exchange: Exchange, path: str, least: float) -> None:
    assert at(exchange.reply(), path) >= least


def path_len(exchange: Exchange, path: str, length: int) -> None:
    assert len(at(exchange.reply(), path)) == length


def path_falsy(exchange: Exchange, path: str) -> None:
    *outer, last = path.split(".")
    assert not at(exchange.reply(), ".".join(outer)).get(last)


def usage_sum(exchange: Exchange) -> None:
    usage = exchange.reply()["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def usage_max_completion(exchange: Exchange, most: int) -> None:
    assert exchange.reply()["usage"]["completion_tokens"] <= most


def spec_schema(exchange: Exchange, name: str) -> None:
    assert [error.message for error in validator(name).iter_errors(exchange.reply())] == []


def ids_unique(exchange: Exchange, count: int) -> None:
    ids = {exchange.reply()["id"], *(exchange.again().json()["id"] for _ in range(count - 1))}
    assert len(ids) == count


# --- streams ---


def sse(exchange: Exchange) -> None:
    assert exchange.answer.headers["content-type"].startswith("text/event-stream")
    assert exchange.answer.events()[-1] == "[DONE]"
    for chunk in exchange.answer.chunks():
        assert chunk["object"] in ("chat.completion.chunk", "text_completion")
        text = "text" if chunk["object"] == "text_completion" else "delta"
        assert all({"index", "finish_reason", text} <= set(choice) for choice in chunk["choices"])


def sse_utf8(exchange: Exchange) -> None:
    exchange.answer.body.decode()


def sse_usage_last(exchange: Exchange) -> None:
    *before, last = exchange.answer.chunks()
    assert (last["choices"], bool(last["usage"])) == ([], True)
    assert not any(chunk.get("usage") for chunk in before)


def sse_usage_completion_tokens(exchange: Exchange, count: int) -> None:
    assert exchange.answer.chunks()[-1]["usage"]["completion_tokens"] == count


def sse_one_finish(exchange: Exchange) -> None:
    choices = [choice for chunk in exchange.answer.chunks() for choice in chunk["choices"]]
    finished = [choice["index"] for choice in choices if choice["finish_reason"] is not None]
    assert sorted(finished) == sorted({choice["index"] for choice in choices})


def sse_indices(exchange: Exchange, indices: list[int]) -> None:
    assert sorted({choice["index"] for chunk in exchange.answer.chunks() for choice in chunk["choices"]}) == indices


# --- what a feature promises ---


def content_schema(exchange: Exchange, schema: Any) -> None:
    choice = exchange.reply()["choices"][0]
    if choice["finish_reason"] != "length":
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)


def tool_call_valid(exchange: Exchange, name: str) -> None:
    choice = exchange.reply()["choices"][0]
    if choice["finish_reason"] != "length":
        call = choice["message"]["tool_calls"][0]
        assert (call["type"], call["function"]["name"], bool(call["id"])) == ("function", name, True)
        assert isinstance(json.loads(call["function"]["arguments"]), dict)


def logprobs(exchange: Exchange, tops: int) -> None:
    reply = exchange.reply()
    entries = reply["choices"][0]["logprobs"]["content"]
    assert len(entries) in (reply["usage"]["completion_tokens"], reply["usage"]["completion_tokens"] - 1)
    for entry in entries:
        assert {"token", "logprob", "bytes", "top_logprobs"} <= set(entry)
        assert (entry["logprob"] <= 0, len(entry["top_logprobs"])) == (True, tops)


def echo_logprobs(exchange: Exchange, prompt_tokens: int) -> None:
    lists = exchange.reply()["choices"][0]["logprobs"]
    assert {len(values) for values in lists.values()} == {prompt_tokens + 1}
    assert lists["token_logprobs"][0] is None


def embedding(exchange: Exchange, form: str, count: int) -> None:
    data = exchange.reply()["data"]
    first = data[0]["embedding"]
    assert [entry["index"] for entry in data] == list(range(count))
    assert (isinstance(first, str) and len(base64.b64decode(first)) % 4 == 0) == (form == "base64")


def text_of(answer: Answer) -> Any:
    """The text of a completion."""
    return answer.json()["choices"][0]["text"]


def same_text_as_worker(exchange: Exchange) -> None:
    assert text_of(exchange.answer) == text_of(exchange.again(exchange.worker))


def concurrent_same_text(exchange: Exchange, count: int) -> None:
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda _: text_of(exchange.again()), range(count)))
    assert set(answers) == {text_of(exchange.answer)}


def nothing_more(_exchange: Exchange, *_arguments: Any) -> None:
    """A check that is part of another: of `alive`, or of what the case's status says."""


_CHECKS: dict[str, Check] = {
    "no_traceback": no_traceback,
    "alive": alive,
    "max_seconds": max_seconds,
    "raw_contains": raw_contains,
    "raw_not_contains": raw_not_contains,
    "raw_eof": raw_eof,
    "header": header,
    "header_absent": header_absent,
    "header_if": header_if,
    "redirect_relative_or_same_host": redirect,
    "error_shape": error_shape,
    "json": is_json,
    "strict_json": strict_json,
    "path_eq": path_eq,
    "if200_path_eq": path_eq,
    "path_in": path_in,
    "path_exists": path_exists,
    "path_min": path_min,
    "path_len": path_len,
    "path_falsy": path_falsy,
    "usage_sum": usage_sum,
    "usage_max_completion": usage_max_completion,
    "if200_usage_max_completion": usage_max_completion,
    "spec_schema": spec_schema,
    "ids_unique": ids_unique,
    "sse": sse,
    "sse_utf8": sse_utf8,
    "sse_usage_last": sse_usage_last,
    "sse_usage_completion_tokens": sse_usage_completion_tokens,
    "sse_one_finish": sse_one_finish,
    "sse_indices": sse_indices,
    "if200_content_schema": content_schema,
    "if200_tool_call_valid": tool_call_valid,
    "if200_logprobs": logprobs,
    "if200_echo_logprobs": echo_logprobs,
    "if200_embedding": embedding,
    "same_text_as_worker": same_text_as_worker,
    "prime_worker_then_same": same_text_as_worker,
    "concurrent_same_text": concurrent_same_text,
    "concurrent_ok": nothing_more,
    "settles": nothing_more,
}


def exchange_of(case: Case, gateway: Client, worker: Client) -> Exchange:
    """Send a case to the process it is for."""
    begun = monotonic()
    answer = (worker if case.target == "worker" else gateway).send(case.request)
    return Exchange(case, answer, gateway, worker, monotonic() - begun)
