"""The models endpoints. Source: OpenAI `Model`, `ListModelsResponse`."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class Model(Struct, kw_only=True):
    """A model that is served: `created` is in Unix seconds."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "packrelay"
    max_model_len: int | None | UnsetType = UNSET


class ModelList(Struct, kw_only=True):
    """All models served here."""

    object: Literal["list"] = "list"
    data: list[Model] = []
