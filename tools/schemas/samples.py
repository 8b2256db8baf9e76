"""A value of any type, made from the type alone: so a new field is in the samples as soon as it is in the Struct.

minimal        only what is required
full           every field, with ordinary values
nasty-null     every field that may be null is null, the others are not set
nasty-empty    every field set, to the smallest value it can have: empty text, empty lists, zero
nasty-huge     every field set, to the largest: 63-bit numbers, text outside the basic plane, lists past msgpack's short form
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

from msgspec import inspect
from msgspec.inspect import Field, Type

from schemas.openai.completions import CompletionRequest

LARGEST: Final = 2**63 - 1
LONG_LIST: Final = 20
"""Items of a huge list: more than msgpack's one-byte form holds (15)."""
_NASTY_TEXT: Final = '𝄞🧵 "\\\n\x00\u2028é漢'
_LONG_TEXT: Final = _NASTY_TEXT * 13
"""Longer than 255 bytes: past msgpack's one-byte length. Only outside lists, which would multiply it."""


class Size(StrEnum):
    """Which sample; its name in file names."""

    MINIMAL = "minimal"
    FULL = "full"
    NULL = "nasty-null"
    EMPTY = "nasty-empty"
    HUGE = "nasty-huge"


# Any: what stands in a field is of the field's type.
_CALLS: Final[dict[Size, Any]] = {Size.EMPTY: "none", Size.HUGE: {"name": _NASTY_TEXT}}
_PROMPTS: Final[dict[Size, Any]] = {Size.EMPTY: "", Size.HUGE: [[0, 2**31 - 1], [1]]}
_SAID: Final[dict[tuple[str, str], tuple[Any, dict[Size, Any]]]] = {
    ("CompletionRequest", "prompt"): ("Once upon a time", _PROMPTS),
    ("ChatOptions", "function_call"): ("auto", _CALLS),
    ("DeferredChatRequest", "messages"): (
        b'[{"role":"user","content":"hello"}]',
        {Size.EMPTY: b"[]", Size.HUGE: '[{"role":"user","content":"𝄞","unknown":[9223372036854775807]}]'.encode()},
    ),
    ("DeferredChatRequest", "tools"): (b"[]", {}),
    ("AssistantMessage", "role"): ("assistant", {}),
}
"""Values that a type does not say, by the Struct that has the field: what is ordinary, and what the other samples have instead."""


def sample(type_: Any, size: Size) -> Any:
    """The value of a type that this sample is."""
    return _value(inspect.type_info(type_), size, "", 0)


def _value(type_: Type, size: Size, name: str, depth: int) -> Any:
    if isinstance(type_, inspect.StructType):
        return _struct(type_, size, depth)
    if isinstance(type_, inspect.UnionType):
        return _value(_chosen(type_, size), size, name, depth)
    if isinstance(type_, inspect.ListType):
        return [_value(type_.item_type, size, name, depth + 1) for _ in range(_length(type_, size, depth))]
    if isinstance(type_, inspect.TupleType):
        return tuple(_value(item, size, name, depth + 1) for item in type_.item_types)
    if isinstance(type_, inspect.DictType):
        return _mapping(type_, size, name, depth)
    return _SCALARS[type(type_)](type_, size, name, depth)


def _struct(type_: inspect.StructType, size: Size, depth: int) -> Any:
    given = {field.name: _field(type_, field, size, depth) for field in type_.fields if _is_set(field, size)}
    return type_.cls(**given)


def _is_set(field: Field, size: Size) -> bool:
    if field.required or size in (Size.FULL, Size.EMPTY, Size.HUGE):
        return True
    return size is Size.NULL and _takes_null(field.type)


def _takes_null(type_: Type) -> bool:
    types = type_.types if isinstance(type_, inspect.UnionType) else (type_,)
    return any(isinstance(made, inspect.NoneType | inspect.AnyType) for made in types)


def _field(owner: inspect.StructType, field: Field, size: Size, depth: int) -> Any:
    if size is Size.NULL and _takes_null(field.type):
        return None
    for base in owner.cls.__mro__:
        if (base.__name__, field.name) in _SAID:
            ordinary, others = _SAID[base.__name__, field.name]
            return others.get(size, ordinary)
    return _value(field.type, size, field.name, depth)


def _chosen(type_: inspect.UnionType, size: Size) -> Type:
    """The first alternative, or the last one for a huge sample: so that both are seen."""
    types = [made for made in type_.types if not isinstance(made, inspect.NoneType)]
    return types[-1] if size is Size.HUGE else types[0]


def _length(type_: inspect.ListType, size: Size, depth: int) -> int:
    least, most = type_.min_length or 0, type_.max_length or LONG_LIST
    if size in (Size.MINIMAL, Size.EMPTY, Size.NULL):
        return least
    # Lists within lists would multiply.
    return max(least, min(most, LONG_LIST if size is Size.HUGE and depth == 0 else 2))


def _mapping(type_: inspect.DictType, size: Size, name: str, depth: int) -> dict[Any, Any]:
    if size in (Size.MINIMAL, Size.EMPTY, Size.NULL):
        return {}
    count = LONG_LIST if size is Size.HUGE and depth == 0 else 1
    keys = [f"{number}" if size is Size.FULL else f"𝄞{number}" for number in range(count)]
    return {key: _value(type_.value_type, size, name, depth + 1) for key in keys}


# --- values without parts ---


def _integer(type_: Any, size: Size, _name: str, _depth: int) -> int:
    least = type_.ge if type_.ge is not None else -LARGEST - 1
    most = type_.le if type_.le is not None else LARGEST
    if size is Size.HUGE:
        return int(most)
    return int(max(least, min(most, 7 if size is Size.FULL else 0)))


def _number(type_: Any, size: Size, _name: str, _depth: int) -> float:
    least = next((bound for bound in (type_.ge, type_.gt) if bound is not None), -1e300)
    most = type_.le if type_.le is not None else 1e300
    if size is Size.HUGE:
        return float(most)
    made = max(least, min(most, 0.5 if size is Size.FULL else 0.0))
    return float(made if type_.gt is None or made > type_.gt else made + 0.5)


def _text(type_: Any, size: Size, name: str, depth: int) -> str:
    if size is Size.HUGE:
        return (_NASTY_TEXT if depth else _LONG_TEXT)[: type_.max_length]
    if size is Size.FULL:
        return f"a {name}".replace("_", " ")
    return "x" * (type_.min_length or 0)


def _bytes(_type: Any, size: Size, _name: str, depth: int) -> bytes:
    # Two of the four bytes of a character: bytes need not be text.
    return {Size.FULL: b"hello", Size.HUGE: b"\xf0\x9f" * (1 if depth else 200)}.get(size, b"")


def _anything(_type: Any, size: Size, _name: str, _depth: int) -> Any:
    if size is Size.FULL:
        return {"a": [1, -1, 0.5, "text", True, None]}
    if size is Size.HUGE:
        return {"𝄞": [LARGEST, -LARGEST - 1, 1e300, _NASTY_TEXT, list(range(LONG_LIST)), {}]}
    return {}


def _literal(type_: Any, size: Size, _name: str, _depth: int) -> Any:
    return type_.values[-1 if size is Size.HUGE else 0]


def _member(type_: Any, size: Size, _name: str, _depth: int) -> Any:
    return list(type_.cls)[-1 if size is Size.HUGE else 0]


def _flag(_type: Any, size: Size, _name: str, _depth: int) -> bool:
    return size in (Size.FULL, Size.HUGE)


_SCALARS: Final[dict[type[Type], Callable[[Any, Size, str, int], Any]]] = {
    inspect.IntType: _integer,
    inspect.FloatType: _number,
    inspect.StrType: _text,
    inspect.BytesType: _bytes,
    inspect.BoolType: _flag,
    inspect.AnyType: _anything,
    inspect.LiteralType: _literal,
    inspect.EnumType: _member,
}


def long_prompt() -> CompletionRequest:
    """A completions request whose prompt is 65,536 token ids: past the longest list that has a two-byte length."""
    return CompletionRequest(model="m", prompt=[number % 128 for number in range(1 << 16)])
