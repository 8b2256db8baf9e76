"""What a test may ask of a stock worker: its options, and its faults."""

import asyncio
import json
from dataclasses import dataclass, field
from enum import Enum


class Ending(Enum):
    """How a stream that does not reach its end stops."""

    FAILURE = "failure"
    """The engine raises: completions report it and say `[DONE]`, chat breaks the connection."""
    VANISH = "vanish"
    """The process is gone: the connection is reset."""
    CUT = "cut"
    """The body ends properly, but without a terminal."""
    SILENCE = "silence"
    """Nothing more comes until the client leaves or `resume` is set."""


@dataclass(frozen=True)
class Refusal:
    """A reply given instead of an answer."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def validation(cls, text: str = "1 validation error") -> "Refusal":
        """A request that does not validate."""
        return cls(400, json.dumps({"error": text}).encode())

    @classmethod
    def internal(cls, text: str, status: int = 400) -> "Refusal":
        """Any exception while a request is served: reported as the client's fault, whoever's it is."""
        body = {"object": "error", "message": text, "type": "BadRequestError", "param": None, "code": status}
        return cls(status, json.dumps(body).encode())

    @classmethod
    def bare_app(cls) -> "Refusal":
        """Malformed msgpack on an application without trtllm-serve's own validation handler."""
        detail = [{"type": "json_invalid", "loc": ["body", 0], "msg": "JSON decode error", "input": {}}]
        return cls(422, json.dumps({"detail": detail}).encode())

    @classmethod
    def fatal(cls) -> "Refusal":
        """The executor died: 200 with a null body, while the process ends itself."""
        return cls(200, b"null")


@dataclass
class Behaviour:
    """The options of one stand-in; a test may change them while it runs."""

    healthy: bool = True
    token_delay: float = 0.0
    """Seconds before each token."""
    refusal: Refusal | None = None
    refusals_left: int | None = None
    """How many more requests get the refusal; None is all of them."""
    vanish_before_reply: bool = False
    hold_before_reply: bool = False
    """Wait for `resume` before anything is answered."""
    tokens_before_ending: int = 0
    ending: Ending | None = None
    """If set, a stream stops like this after `tokens_before_ending` tokens."""
    stream_type: str = "text/event-stream; charset=utf-8"
    perf_metrics: bool = False
    """Report performance metrics also to those who did not ask."""
    second_done: bool = True
    """The outer wrapper of a failed completions stream adds a `[DONE]` of its own."""
    early_finish: bool = False
    """A context leg finds the end of the answer at once."""
    replaced_disagg_id: int | None = None
    """A context leg answers with this id instead of the one it was given, as after a retry."""
    ctx_info_endpoint: str | None = None
    cached_tokens: int = 0
    resume: asyncio.Event = field(default_factory=asyncio.Event)
