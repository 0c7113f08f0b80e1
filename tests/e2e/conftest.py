"""The real demo models."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ullage.models.store import pull

FILE_NAMES = {"smollm2": "smollm2.gguf", "gemma3-270m": "gemma-3-270m-q4_k_m.gguf"}


@pytest.fixture(scope="session")
def model_path() -> Callable[[str], Path]:
    """The file of a demo model: in the folder $ULLAGE_TEST_MODELS if that is set, else in the store, else pulled."""
    if folder := os.environ.get("ULLAGE_TEST_MODELS"):
        return lambda name: Path(folder) / FILE_NAMES[name]
    return pull
