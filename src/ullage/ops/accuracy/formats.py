"""Which ways to hold weights, keys and values there are to measure: those that the engine's settings offer."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from ullage.base.config import settings_of
from ullage.engine.build import EngineOptions

Formats = Mapping[str, str]
"""Engine setting -> choice, for instance weight_type -> int8."""

FORMAT_SETTINGS = ("weight_type", "kv_cache_dtype")
"""Engine settings whose every choice is measured."""


def format_choices() -> dict[str, tuple[str, ...]]:
    """Setting -> what it can be."""
    settings = settings_of(EngineOptions)
    return {name: settings[name].choices for name in FORMAT_SETTINGS}


def all_formats(choices: Mapping[str, tuple[str, ...]]) -> list[Formats]:
    """Each weight type with each KV type."""
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
