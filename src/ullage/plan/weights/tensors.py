"""The shape of a weight, and how tensor and expert parallelism split it. Nothing here knows a model or an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Split = Literal["whole", "rows", "columns", "kv_rows"]
"""How tensor-parallel ranks share a tensor: every rank a whole copy; outputs cut; inputs cut; outputs cut by KV head,
at least one head a rank."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor, or ``count`` tensors of one shape.

    :ivar name: its name below the layer, as in published checkpoints
    :ivar rows: outputs
    :ivar columns: inputs; 1 for a vector
    :ivar heads: for ``kv_rows``: number of KV heads that the rows belong to
    :ivar expert: one matrix per expert; expert parallelism gives them out whole instead of cutting each
    :ivar linear: whether weight formats apply to it (embeddings, norms, convolutions and biases are kept as they are)
    :ivar float32: kept in four bytes whatever the model's type (state-space decay)
    """

    name: str
    rows: int
    columns: int = 1
    count: int = 1
    split: Split = "whole"
    heads: int = 1
    linear: bool = False
    expert: bool = False
    float32: bool = False

    @property
    def parameters(self) -> int:
        return self.rows * self.columns * self.count


def vector(name: str, size: int, *, split: Split = "whole", float32: bool = False, heads: int = 1) -> Weight:
    """A norm, a bias, or another vector."""
    return Weight(name, size, split=split, float32=float32, heads=heads)


def linear(name: str, outputs: int, inputs: int, *, split: Split, heads: int = 1) -> Weight:
    """A matrix that weight formats apply to."""
    return Weight(name, outputs, inputs, split=split, heads=heads, linear=True)


def experts(name: str, outputs: int, inputs: int, num_experts: int, *, split: Split) -> Weight:
    """One matrix of each expert."""
    return Weight(name, outputs, inputs, num_experts, split, linear=True, expert=True)
