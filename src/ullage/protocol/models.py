"""``/v1/models``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class ModelCard(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    """vLLM's addition: prompt + output tokens at most."""


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]
