"""Arguments as strict as the library's own: a value that does not fit its annotation is a TypeError."""

from collections.abc import Callable
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def check_fields(instance: Any) -> None:
    """Every field of a dataclass against its annotation. Any: whatever dataclass."""
    hints = get_type_hints(type(instance))
    for field in fields(instance):
        check(field.name, getattr(instance, field.name), hints[field.name])


def check(name: str, value: Any, hint: Any) -> None:
    """One value against one annotation. Any: both may be anything."""
    if not fits(value, hint):
        raise TypeError(f"{name} must be {hint}, got {value!r}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotation's type; no boolean is a number."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is list:
        return isinstance(value, list) and all(fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            fits(key, inner[0]) and fits(held, inner[1]) for key, held in value.items()
        )
    if hint is Any:
        return True
    return _is(value, origin or hint)


def _is(value: Any, kind: Any) -> bool:
    if kind is Callable:
        return callable(value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
