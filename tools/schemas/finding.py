"""What is wrong with a change of the wire: the type, the field, and the rule that it broke."""

from enum import StrEnum

from msgspec import Struct


class Rule(StrEnum):
    """Every way to break a peer that is one release older. docs/wire.md says what each means."""

    REMOVED_TYPE = "removed-type"
    REMOVED_FIELD = "removed-field"
    REMOVED_TAG = "removed-tag"
    CHANGED_TYPE = "changed-type"
    CHANGED_DEFAULT = "changed-default"
    NEW_FIELD_WITHOUT_DEFAULT = "new-field-without-default"
    NARROWED_BOUND = "narrowed-bound"
    REUSED_NUMBER = "reused-number"
    UNREADABLE_FRAME = "unreadable-frame"
    CHANGED_FRAME = "changed-frame"


class Finding(Struct, frozen=True):
    """One broken rule. `field` is empty where the type as a whole is meant; for a frame it is the sample's name."""

    type: str
    field: str
    rule: Rule
    detail: str

    @property
    def place(self) -> str:
        """The type and the field, as they are said to people."""
        return f"{self.type}.{self.field}" if self.field else self.type

    def __str__(self) -> str:
        return f"{self.place}: {self.detail} (rule {self.rule})"
