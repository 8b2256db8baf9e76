"""Which Structs cross a wire, found by looking; and which of them are messages, said by name."""

import enum
import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

import schemas
from schemas.abort import AbortRequest
from schemas.cluster import ClusterInfo, Registration
from schemas.dialect import Dialect
from schemas.disagg import DisaggregatedParams, OpaqueState
from schemas.events import Delta, Done, Event, Failed, Started
from schemas.openai.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest, DeferredChatRequest
from schemas.openai.completions import Completion, CompletionRequest
from schemas.openai.errors import ErrorBody
from schemas.openai.models import Model, ModelList
from schemas.openai.stream import StreamHead
from schemas.server_info import ServerInfo

ROOT: Final = Path(__file__).parents[2]
GENERATED: Final = ROOT / "schemas" / "generated"
RELEASED: Final = "released"

NEVER_SENT: Final[dict[type[Struct], str]] = {
    Dialect: "what this side knows of a kind of worker",
    StreamHead: "what the maker of a stream's records remembers",
}
"""Public Structs that cross no wire, with what they are."""

EventBatch = list[tuple[int, Event]]

# Any: a union and a list are types too, but not classes.
MESSAGES: Final[dict[str, Any]] = {
    "AbortRequest": AbortRequest,
    "ChatCompletion": ChatCompletion,
    "ChatCompletionChunk": ChatCompletionChunk,
    "ChatCompletionRequest": ChatCompletionRequest,
    "ClusterInfo": ClusterInfo,
    "Completion": Completion,
    "CompletionRequest": CompletionRequest,
    "DeferredChatRequest": DeferredChatRequest,
    "Delta": Delta,
    "DisaggregatedParams": DisaggregatedParams,
    "Done": Done,
    "ErrorBody": ErrorBody,
    "EventBatch": EventBatch,
    "Failed": Failed,
    "Model": Model,
    "ModelList": ModelList,
    "OpaqueState": OpaqueState,
    "Registration": Registration,
    "ServerInfo": ServerInfo,
    "Started": Started,
}
"""What crosses a wire by itself, so that golden frames are kept of it. Everything else is inside one of these."""

UNIONS: Final[dict[str, Any]] = {"Event": Event, "EventBatch": EventBatch}
"""Named types that are no classes and have a schema of their own."""


def wire_types() -> list[type[Struct]]:
    """Every public Struct of `schemas` that crosses a wire, by name."""
    found = {found for module in _modules() for found in vars(module).values() if _is_public_struct(found)}
    return sorted(found - set(NEVER_SENT), key=lambda struct: struct.__name__)


def enums() -> list[type[enum.Enum]]:
    """The closed sets of values in those types, by name."""
    found = {found for module in _modules() for found in vars(module).values() if _is_own(found, enum.Enum)}
    return sorted(found, key=lambda made: made.__name__)


def reachable(type_: Any) -> set[str]:
    """The names of the types that a message is made of, its own included."""
    _, components = msgspec.json.schema_components([type_])
    return set(components)


def _modules() -> list[Any]:
    """The modules of `schemas`: what protoc made speaks for itself."""
    walked = pkgutil.walk_packages(schemas.__path__, "schemas.", onerror=_fail)
    return [import_module(found.name) for found in walked if not found.name.startswith("schemas.pb")]


def _fail(name: str) -> None:
    raise ImportError(f"{name} could not be imported")


def _is_own(found: object, kind: type) -> bool:
    return isinstance(found, type) and issubclass(found, kind) and found.__module__.startswith("schemas.")


def _is_public_struct(found: object) -> bool:
    return _is_own(found, Struct) and not getattr(found, "__name__", "_").startswith("_")
