"""schemas/changes.toml: changes that break a rule on purpose, each with its reason."""

from typing import Final

import msgspec
from msgspec import Struct

from tools.schemas.catalogue import MESSAGES, ROOT, reachable
from tools.schemas.finding import Finding, Rule

PATH: Final = ROOT / "schemas" / "changes.toml"
_FRAME_RULES: Final = (Rule.CHANGED_FRAME, Rule.UNREADABLE_FRAME)


class Change(Struct, frozen=True, forbid_unknown_fields=True):
    """A declared change. `after` is the last release that did not have it; `field` is empty for a whole type."""

    after: str
    type: str
    field: str
    rule: Rule
    reason: str


class _Changes(Struct, forbid_unknown_fields=True):
    change: list[Change] = []


def declared(text: bytes | None = None) -> list[Change]:
    """The changes of schemas/changes.toml, or of another text in its form."""
    return msgspec.toml.decode(PATH.read_bytes() if text is None else text, type=_Changes).change


def order_of(version: str) -> tuple[int, ...]:
    """A version as it is compared."""
    return tuple(int(part) for part in version.split("."))


def covers(change: Change, finding: Finding, version: str) -> bool:
    """Whether this change declares the finding, which was made against the snapshot of this version.

    Frames of a message follow from what was declared of any type it is made of, since that version.
    """
    if order_of(change.after) < order_of(version):
        return False
    if (change.type, change.field, change.rule) == (finding.type, finding.field, finding.rule):
        return True
    return finding.rule in _FRAME_RULES and change.type in reachable(MESSAGES[finding.type])
