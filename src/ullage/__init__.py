"""Ullage serves large language models under a memory budget that is kept to the byte."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ullage.base.errors import (
        ConfigError,
        EngineError,
        ModelFileError,
        PlanError,
        RequestError,
        UllageError,
    )
    from ullage.engine.llm import LLM, Completion
    from ullage.engine.sampling_params import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Completion",
    "ConfigError",
    "EngineError",
    "ModelFileError",
    "PlanError",
    "RequestError",
    "SamplingParams",
    "UllageError",
    "__version__",
]

_HOMES = {
    "LLM": "ullage.engine.llm",
    "Completion": "ullage.engine.llm",
    "ConfigError": "ullage.base.errors",
    "EngineError": "ullage.base.errors",
    "ModelFileError": "ullage.base.errors",
    "PlanError": "ullage.base.errors",
    "RequestError": "ullage.base.errors",
    "SamplingParams": "ullage.engine.sampling_params",
    "UllageError": "ullage.base.errors",
}


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used: ``ullage --help`` needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ullage' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
