"""What a stand-in was sent, exactly."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import msgpack  # type: ignore[import-untyped]  # the package carries no types

TAG = "x-trtllm-msgpack"


@dataclass
class Recorded:
    """One request as it arrived. `gone` is set when its client leaves before the reply is complete."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def tagged(self) -> bool:
        """Whether the body is declared to be msgpack: the header alone decides, and only by the exact value."""
        return self.headers.get(TAG) == "1"

    def decoded(self) -> Any:
        """The body read as the header says; an empty one is an empty map."""
        if not self.body:
            return {}
        if self.tagged:
            return msgpack.unpackb(self.body, strict_map_key=True)
        return json.loads(self.body)
