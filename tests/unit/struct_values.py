"""Hypothesis strategies for values of any type of the schema, made from the type alone."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import NODEFAULT, UNSET, inspect
from msgspec.inspect import Field, Type

INT64 = (-(2**63), 2**63 - 1)

# Text that is one of a kind in JSON or msgpack beside whatever hypothesis thinks of. Surrogates are no text.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["𝄞", "\x00", "\\u0000", "\u2028", ""]
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | st.integers(*INT64) | NUMBERS | TEXT
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=4
)


@lru_cache
def values_of(type_: Any) -> SearchStrategy[Any]:
    """Values of a type: for a Struct every field is absent, null or a value, as far as the type allows it."""
    return _values(inspect.type_info(type_))


def _values(type_: Type) -> SearchStrategy[Any]:
    return _STRATEGIES[type(type_)](type_)


def _struct(type_: Any) -> SearchStrategy[Any]:
    return st.builds(type_.cls, **{field.name: _field(field) for field in type_.fields})


def _field(field: Field) -> SearchStrategy[Any]:
    values = st.deferred(lambda: _values(field.type))
    if field.required:
        return values
    # A field without a default of its own is one that may be absent. Most are, or every example would be huge.
    return st.just(_default(field)) | values


def _default(field: Field) -> Any:
    if isinstance(field.default_factory, type):
        return field.default_factory()
    return UNSET if field.default is NODEFAULT else field.default


def _list(type_: Any) -> SearchStrategy[Any]:
    size = min(type_.max_length or 2, 2)
    return st.lists(_values(type_.item_type), min_size=type_.min_length or 0, max_size=max(size, type_.min_length or 0))


def _text(type_: Any) -> SearchStrategy[str]:
    least = type_.min_length or 0
    return TEXT.map(lambda text: text + "x" * (least - len(text)))


def _integer(type_: Any) -> SearchStrategy[int]:
    least = INT64[0] if type_.ge is None else type_.ge
    return st.integers(least, INT64[1] if type_.le is None else type_.le)


def _number(type_: Any) -> SearchStrategy[float]:
    least = type_.ge if type_.gt is None else type_.gt
    return st.floats(least, type_.le, allow_nan=False, allow_infinity=False, exclude_min=type_.gt is not None)


_STRATEGIES: dict[type[Type], Callable[[Any], SearchStrategy[Any]]] = {
    inspect.StructType: _struct,
    inspect.UnionType: lambda type_: st.one_of([_values(part) for part in type_.types]),
    inspect.ListType: _list,
    inspect.TupleType: lambda type_: st.tuples(*[_values(part) for part in type_.item_types]),
    inspect.DictType: lambda type_: st.dictionaries(TEXT, _values(type_.value_type), max_size=2),
    inspect.StrType: _text,
    inspect.IntType: _integer,
    inspect.FloatType: _number,
    inspect.BoolType: lambda _: st.booleans(),
    inspect.BytesType: lambda _: st.binary(max_size=8),
    inspect.NoneType: lambda _: st.none(),
    inspect.LiteralType: lambda type_: st.sampled_from(type_.values),
    inspect.EnumType: lambda type_: st.sampled_from(list(type_.cls)),
    inspect.AnyType: lambda _: ANYTHING,
}
