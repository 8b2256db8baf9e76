"""Versions of the stock worker that differ on the wire: which keys they refuse, and which they have that the newest has not.

Source: trtllm-wire.md 1.2 and its timeline. The models in `protocol` are the newest version's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

Json = dict[str, Any]
_OLDER = frozenset({"conversation_id"})
"""Keys of the hand-off that a version before the newest had."""


@dataclass(frozen=True)
class Version:
    """One of them. `number` is what `/version` says."""

    number: str
    unknown: frozenset[str] = frozenset()
    """Keys of a request that it forbids."""
    unknown_params: frozenset[str] = frozenset()
    """Keys of `disaggregated_params` that it forbids."""
    older_params: frozenset[str] = frozenset()
    """Keys of `disaggregated_params` that the newest forbids."""
    msgpack: bool = True
    """Whether it knows the header that says a body is msgpack."""

    def read(self, body: Json) -> Json:
        """The request in the newest version's words; ValueError for a key that is not known yet."""
        params = body.get("disaggregated_params")
        refused = self.unknown & set(body) | self.unknown_params & set(params or ())
        if refused:
            raise ValueError(f"extra fields not permitted: {', '.join(sorted(refused))}")
        if params is None:
            return body
        return body | {"disaggregated_params": {key: params[key] for key in params if key not in self.older_params}}

    def known(self, params: Json) -> Json:
        """What of another version's hand-off may come back to this one."""
        refused = self.unknown_params | (_OLDER - self.older_params)
        return {key: value for key, value in params.items() if key not in refused}

    def answer(self, params: Json, asked: Mapping[str, Any]) -> Json:
        """A context leg's hand-off as this version has it: every key it knows, nulls included."""
        known = {key: value for key, value in params.items() if key not in self.unknown_params}
        return known | {key: asked.get(key) for key in self.older_params}


NEWEST = Version("1.3.0")
JULY = Version("1.3.0rc24", unknown_params=frozenset({"resolved_thinking"}), older_params=_OLDER)
JUNE = Version(
    "1.3.0rc21",
    unknown=frozenset({"conversation_params", "prompt_token_ids_b64"}),
    unknown_params=frozenset({"resolved_thinking", "return_prompt_token_ids_b64"}),
    older_params=_OLDER,
)
RELEASE_1_2 = replace(JUNE, number="1.2.1", msgpack=False)
