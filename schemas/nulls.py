"""Null where a field has no null of its own: on the inner hop it stands for the field's default.

A stock worker spells out every field of a reply, and a newer peer may send null where this side knows only a value. The typed
decoder refuses that; only then is the message read once more without those nulls. Nothing here runs for a message that fits.
"""

from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect
from msgspec.inspect import Type

T = TypeVar("T")

_GOT_NULL = ("got `null`", "got `None`")
"""How msgspec's two decoders say that it is a null that does not fit. Whatever else is wrong needs no second look."""

_NULLABLE = inspect.NoneType | inspect.AnyType | inspect.RawType


class LenientDecoder(Generic[T]):
    """A decoder of one type that takes null for the default of any field that has one. It raises what msgspec raises."""

    def __init__(self, typed: "msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T]") -> None:
        # Any: a message as plain values, as it is before it has a type.
        self._typed: Any = typed
        self._plain: Any = msgspec.json if isinstance(typed, msgspec.json.Decoder) else msgspec.msgpack

    def decode(self, data: bytes | memoryview) -> T:
        """The message."""
        try:
            message: T = self._typed.decode(data)
        except msgspec.ValidationError as error:
            if not any(said in str(error) for said in _GOT_NULL):
                raise
            value = self._plain.decode(data)
            if not drop_nulls(value, self._typed.type):
                raise
            message = self._typed.decode(self._plain.encode(value))
        return message


def drop_nulls(value: Any, type_: Any) -> bool:
    """Take out of a plain value, in place, every null that its type has no place for but a default; says whether there was one."""
    return _drop(value, _alternatives(_described(type_)))


@lru_cache(maxsize=256)
def _described(type_: Any) -> Type:
    return inspect.type_info(type_)


def _alternatives(type_: Type) -> tuple[Type, ...]:
    return type_.types if isinstance(type_, inspect.UnionType) else (type_,)


def _drop(value: Any, types: tuple[Type, ...]) -> bool:
    if isinstance(value, dict):
        struct = _struct_of(value, types)
        return struct is not None and _drop_in_fields(value, struct)
    if isinstance(value, list):
        # Every item first: `any` of a generator would stop at the first that had a null.
        dropped = [_drop(item, _alternatives(of)) for item, of in _typed_items(value, types)]
        return any(dropped)
    return False


def _struct_of(value: dict[Any, Any], types: tuple[Type, ...]) -> inspect.StructType | None:
    structs = [type_ for type_ in types if isinstance(type_, inspect.StructType)]
    if len(structs) == 1:
        return structs[0]
    return next((struct for struct in structs if value.get(struct.tag_field) == struct.tag), None)


def _drop_in_fields(value: dict[Any, Any], struct: inspect.StructType) -> bool:
    dropped = False
    for field in struct.fields:
        name, types = field.encode_name, _alternatives(field.type)
        if name not in value:
            continue
        if value[name] is not None:
            dropped |= _drop(value[name], types)
        elif not field.required and not any(isinstance(type_, _NULLABLE) for type_ in types):
            del value[name]
            dropped = True
    return dropped


def _typed_items(value: list[Any], types: tuple[Type, ...]) -> list[tuple[Any, Type]]:
    for type_ in types:
        if isinstance(type_, inspect.ListType):
            return [(item, type_.item_type) for item in value]
        if isinstance(type_, inspect.TupleType):
            return list(zip(value, type_.item_types, strict=False))
    return []
