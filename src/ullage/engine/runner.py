"""The narrow seam: something that runs one step of a model on one device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ullage.engine.step import SampledToken, ScheduledStep


class ModelRunner(Protocol):
    """Runs one step. Owns the tensors (weights, KV pool, workspace), keeps no state of any request."""

    name: str
    """What the user is told runs the model, e.g. ``native (avx512)``."""

    def execute(self, step: ScheduledStep) -> list[SampledToken]:
        """Writes keys and values of all scheduled tokens into their blocks; returns a token (or why there is none) for
        each request with ``needs_logits``, in order. When entry ``i`` of a request's block table for a group of layers
        is ``b``, block ``b`` holds its tokens ``i * block_size ...`` for these layers.

        :raises EngineError: the step failed; the engine can't go on
        """
        ...

    def stage_seconds(self) -> Mapping[str, float]:
        """Seconds spent in each kind of operator since the beginning, by its name; empty where nobody counts."""
        ...

    def close(self) -> None:
        """Frees the tensors. Nothing may be executed afterwards."""
        ...
