"""The JSON Schemas of a release against today's: what an older peer would no longer understand.

Allowed, and no finding: new types, new tags, new fields with a default, wider bounds, new values of a closed set, other words.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from tools.schemas.artefacts import Files
from tools.schemas.catalogue import wire_types
from tools.schemas.finding import Finding, Rule

Schema = dict[str, Any]
Schemas = dict[str, Schema]
"""JSON Schemas by the name of their type."""

_FOLDER: Final = "json-schema/"
_WORDS: Final = frozenset({"title", "description", "default", "$schema", "$id"})
_EXCLUSIVE: Final = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
_LOWER: Final = ("minimum", "minLength", "minItems")
_UPPER: Final = ("maximum", "maxLength", "maxItems")
_BOUNDS: Final = frozenset({*_LOWER, *_UPPER, *_EXCLUSIVE.values()})


def schemas_of(files: Files) -> Schemas:
    """The JSON Schemas among generated files."""
    named = {name.removeprefix(_FOLDER): data for name, data in files.items() if name.startswith(_FOLDER)}
    return {name.removesuffix(".json"): json.loads(data) for name, data in named.items()}


def schema_findings(released: Schemas, today: Schemas) -> list[Finding]:
    """Every broken rule. A change of an inherited field is found once, at the type that declares it."""
    found: list[Finding] = []
    tags = _tag_fields(released)
    for name, schema in released.items():
        if name not in today:
            found.append(Finding(name, "", Rule.REMOVED_TYPE, "the type was removed or renamed"))
        elif "discriminator" in schema:
            found += _member_findings(name, schema, today[name])
        else:
            found += _type_findings(name, schema, today[name], tags.get(name, ""))
    return _without_inherited(found)


def _tag_fields(released: Schemas) -> dict[str, str]:
    """The field that holds the tag, by the name of each type that has one."""
    unions = [schema["discriminator"] for schema in released.values() if "discriminator" in schema]
    return {
        target.removesuffix(".json"): made["propertyName"] for made in unions for target in made["mapping"].values()
    }


def _without_inherited(found: list[Finding]) -> list[Finding]:
    bases = {type_.__name__: {base.__name__ for base in type_.__mro__[1:]} for type_ in wire_types()}
    seen = {(made.type, made.field, made.rule) for made in found}
    return [
        made for made in found if not any((base, made.field, made.rule) in seen for base in bases.get(made.type, ()))
    ]


def _member_findings(name: str, old: Schema, new: Schema) -> Iterator[Finding]:
    """What a union of tagged types no longer takes; a tag of another name is found at its type."""
    members = new.get("discriminator", {"mapping": {}})["mapping"].values()
    for tag, target in old["discriminator"]["mapping"].items():
        if target not in members:
            yield Finding(name, tag, Rule.REMOVED_TAG, f"the tag '{tag}' was removed")


def _type_findings(name: str, old: Schema, new: Schema, tag: str) -> Iterator[Finding]:
    if "properties" not in old or "properties" not in new:
        yield from _value_findings(name, "", old, new)
        return
    for field, schema in old["properties"].items():
        if field not in new["properties"]:
            yield Finding(name, field, Rule.REMOVED_FIELD, "the field was removed or renamed")
            continue
        if field == tag and schema != new["properties"][field]:
            detail = f"the tag was {_shown(schema)}, and is {_shown(new['properties'][field])}"
            yield Finding(name, field, Rule.REMOVED_TAG, detail)
            continue
        yield from _value_findings(name, field, schema, new["properties"][field])
        yield from _default_findings(name, field, old, new)
    for field in sorted(set(new["properties"]) - set(old["properties"])):
        if field in new.get("required", ()):
            yield Finding(name, field, Rule.NEW_FIELD_WITHOUT_DEFAULT, "the new field has no default")
    if old.get("additionalProperties", True) is not new.get("additionalProperties", True) is False:
        yield Finding(name, "", Rule.NARROWED_BOUND, "unknown fields were tolerated, and are refused")


def _default_findings(name: str, field: str, old: Schema, new: Schema) -> Iterator[Finding]:
    before, after = _default(field, old), _default(field, new)
    if before != after:
        yield Finding(name, field, Rule.CHANGED_DEFAULT, f"the default was {before}, and is {after}")


def _default(field: str, schema: Schema) -> str:
    if field in schema.get("required", ()):
        return "none (required)"
    return json.dumps(schema["properties"][field].get("default", "not set"))


def _value_findings(name: str, field: str, old: Schema, new: Schema) -> Iterator[Finding]:
    if _shape(old) != _shape(new):
        yield Finding(name, field, Rule.CHANGED_TYPE, f"the type was {_shown(old)}, and is {_shown(new)}")
    else:
        for narrowed in _narrowed(old, new):
            yield Finding(name, field, Rule.NARROWED_BOUND, narrowed)


# --- shapes and bounds ---


def _shape(schema: Any) -> Any:
    """A schema without its words, bounds and values: what kind of value it takes."""
    if isinstance(schema, list):
        return sorted((_shape(part) for part in schema), key=_key)
    if not isinstance(schema, dict):
        return schema
    kept = {key: part for key, part in schema.items() if key not in _WORDS | _BOUNDS}
    return {key: True if key == "enum" else _shape(part) for key, part in kept.items()}


def _narrowed(old: Any, new: Any) -> Iterator[str]:
    """Every bound that refuses what it took, in two schemas of one shape."""
    if isinstance(old, list) and isinstance(new, list):
        for before, after in zip(_sorted(old), _sorted(new), strict=True):
            yield from _narrowed(before, after)
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return
    for bound in (*_LOWER, *_UPPER):
        before, after = _bound(bound, old), _bound(bound, new)
        if after is not None and (before is None or (after > before if bound in _LOWER else after < before)):
            yield f"the {bound} was {'not set' if before is None else before[0]}, and is {after[0]}"
    gone = [value for value in old.get("enum", ()) if value not in new.get("enum", ())]
    yield from (f"the value {json.dumps(value)} is no longer taken" for value in gone)
    for key in sorted(set(old) - _WORDS - _BOUNDS - {"enum"}):
        yield from _narrowed(old[key], new[key])


def _bound(name: str, schema: Schema) -> tuple[float, int] | None:
    """A bound as it is compared: one that excludes its value is narrower than one that does not."""
    if name in schema:
        return schema[name], 0
    if _EXCLUSIVE.get(name) in schema:
        return schema[_EXCLUSIVE[name]], 1 if name in _LOWER else -1
    return None


def _sorted(parts: list[Any]) -> list[Any]:
    return sorted(parts, key=lambda part: (_key(_shape(part)), _key(part)))


def _key(part: Any) -> str:
    return json.dumps(part, sort_keys=True)


def _shown(schema: Schema) -> str:
    return json.dumps({key: part for key, part in schema.items() if key not in _WORDS})
