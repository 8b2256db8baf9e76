"""The vendored cases: one request each, and what must be true of the answer."""

import base64
import gzip
import json
from functools import cache
from typing import Any
from uuid import uuid4

import msgspec

from tests.contract.material import DATA


class Expectation(msgspec.Struct, frozen=True):
    """Which statuses are right, and which checks (name and arguments) the answer passes."""

    status: list[int]
    auto: list[list[Any]] = []
    preferred_status: int | None = None


class Case(msgspec.Struct, frozen=True):
    """One case. `request` is a method, path, headers and body, or `raw`: bytes as they go over the socket."""

    id: str
    area: str
    target: str
    request: dict[str, Any]
    expect: Expectation
    source: str
    needs: list[str] = []


@cache
def cases() -> dict[str, Case]:
    """All of them, by name."""
    lines = (DATA / "conformance" / "cases.jsonl").read_bytes().splitlines()
    return {case.id: case for case in (msgspec.json.decode(line, type=Case) for line in lines)}


@cache
def _bomb(megabytes: int) -> bytes:
    return gzip.compress(b'{"a":"' + b"a" * (megabytes << 20) + b'"}', 6)


class Filling(msgspec.Struct, frozen=True):
    """What stands for the placeholders of a case."""

    model: str
    key: str

    def fill(self, value: Any) -> Any:
        """The value with every placeholder in it replaced. Any: requests are JSON."""
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        if isinstance(value, dict):
            return {self.fill(key): self.fill(item) for key, item in value.items()}
        if not isinstance(value, str):
            return value
        named = {"$MODEL": self.model, "$KEY": self.key, "$NONCE": uuid4().hex, "$MSGPACK_HEADER": "X-TRTLLM-Msgpack"}
        for name, text in named.items():
            value = value.replace(name, text)
        return value

    def body(self, body: Any) -> bytes | None:
        """A case's body as bytes: JSON, or what its one key of this kind says."""
        if body is None:
            return None
        match body:
            case {"$raw": text}:
                return str(self.fill(text)).encode()
            case {"$b64": text}:
                return base64.b64decode(text)
            case {"$msgpack": value}:
                return msgspec.msgpack.encode(self.fill(value))
            case {"$gen": recipe}:
                return self._made(self.fill(recipe))
        return json.dumps(self.fill(body)).encode()

    def _made(self, recipe: dict[str, Any]) -> bytes:
        """A body that is too large to be written down."""
        template = recipe.get("template", {})
        match recipe["kind"]:
            case "nest":
                nested = recipe["open"] * recipe["n"] + recipe["mid"] + recipe["close"] * recipe["n"]
                return f"{recipe['prefix']}{nested}{recipe['suffix']}".encode()
            case "pad":
                *places, last = recipe["path"]
                part = template
                for place in places:
                    part = part[place]
                part[last] = recipe["unit"] * (recipe["bytes"] // len(recipe["unit"]))
            case "token_ids":
                template["prompt"] = [5] * recipe["n"]
            case "prompts":
                template["prompt"] = ["a"] * recipe["n"]
            case "manykeys":
                template |= {f"k{number}": number for number in range(recipe["n"])}
            case "gzip_bomb":
                return _bomb(recipe["mb"])
            case "bytes_repeat":
                prefix, unit, suffix = (
                    base64.b64decode(recipe[f"{name}_b64"]) for name in ("prefix", "unit", "suffix")
                )
                return b"".join((prefix, *([unit] * int(recipe["n"])), suffix))
            case kind:
                raise ValueError(f"No case has a body of kind {kind}.")
        return json.dumps(template).encode()
