"""The public API, asked on every kind of fleet: real processes, started once for all tests that ask."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.e2e.conftest import MODEL_MARKS
from tests.e2e.local_fleet import local_fleet, one_worker, two_legs

FLEETS = [
    pytest.param(two_legs("scripted"), id="two-legs-http"),
    pytest.param(one_worker("scripted"), id="one-worker-http"),
    pytest.param(two_legs("scripted", "--link", "grpc"), id="two-legs-grpc"),
    pytest.param(two_legs("llama_cpp"), id="model-two-legs-http", marks=(*MODEL_MARKS, pytest.mark.slow)),
]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class Api:
    """A client of one fleet's gateway. Answers come back as JSON, once their status is what was expected."""

    def __init__(self, http: httpx2.Client, model: str) -> None:
        self.http = http
        self.model = model

    def chat(self, *messages: dict[str, Any], status: int = 200, **fields: Any) -> Any:
        """A chat reply to these messages, or to one. Any: JSON."""
        return self._posted(CHAT, status, {"messages": messages or [user("Say hi.")], "max_tokens": 8} | fields)

    def completion(self, prompt: Any = "Say hi.", status: int = 200, **fields: Any) -> Any:
        """A completions reply. Any: prompts and replies are JSON."""
        return self._posted(COMPLETIONS, status, {"prompt": prompt, "max_tokens": 8} | fields)

    def chat_chunks(self, *messages: dict[str, Any], **fields: Any) -> list[Any]:
        """The records of a chat stream."""
        body = {"messages": messages or [user("Say hi.")], "max_tokens": 8, "stream": True}
        return self._streamed(CHAT, body | fields)

    def completion_chunks(self, prompt: Any = "Say hi.", **fields: Any) -> list[Any]:
        """The records of a completions stream."""
        return self._streamed(COMPLETIONS, {"prompt": prompt, "max_tokens": 8, "stream": True} | fields)

    def refusal(self, path: str, **fields: Any) -> dict[str, Any]:
        """The error object of a request that must be a 400."""
        given = {"messages": [user("Say hi.")]} if path == CHAT else {"prompt": "Say hi."}
        error: dict[str, Any] = self._posted(path, 400, given | fields)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    def _posted(self, path: str, status: int, body: dict[str, Any]) -> Any:
        reply = self.http.post(path, json={"model": self.model} | body)
        assert reply.status_code == status, reply.text
        assert reply.headers["content-type"] == "application/json"
        return reply.json()

    def _streamed(self, path: str, body: dict[str, Any]) -> list[Any]:
        reply = self.http.post(path, json={"model": self.model} | body)
        assert reply.headers["content-type"].startswith("text/event-stream"), reply.text
        *records, terminal, rest = reply.content.split(b"\n\n")
        assert (terminal, rest) == (b"data: [DONE]", b"")
        return [json.loads(record.removeprefix(b"data: ")) for record in records]


def user(content: Any) -> dict[str, Any]:
    """A message of the user's. Any: text, or a list of parts."""
    return {"role": "user", "content": content}


@pytest.fixture(scope="session", params=FLEETS)
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    """Every kind of fleet in turn."""
    settings = {"access_log": "false"}
    if "llama_cpp" in request.param:
        # A request without a limit says as much as the context holds, which must not take for ever on a CPU.
        settings["context_length"] = "1024"
    with local_fleet(*request.param, **settings) as fleet, httpx2.Client(base_url=fleet.url, timeout=60) as http:
        yield Api(http, http.get("/v1/models").json()["data"][0]["id"])
