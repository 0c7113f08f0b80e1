"""Layers that share block tables: those of one window, in groups of equal size.

A layer with a sliding window never reads again what has left the window, a layer without one reads everything. So they
can't share a block table; but when every group has as many layers as any other, a block of one is as good as a block
of another, and one pool serves them all. The idea is that of vLLM's hybrid KV cache manager.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ullage.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers whose keys and values of a token stand in the same block."""

    window: int | None
    """That of each of its layers; None: they see everything."""
    layers: tuple[int, ...]
    """Ascending."""


def layer_groups(spec: ModelSpec) -> tuple[LayerGroup, ...]:
    """The groups of a model, each layer in one of them. A model of layers that are all alike is one group.

    The layers of each window are cut, in order, into groups of g, where g is the largest number that divides the count
    of every kind. Gemma 3 270M has 3 layers without a window and 15 with one: g = 3, 1 group and 5 groups.
    """
    kinds: dict[int | None, list[int]] = {}
    for index, layer in enumerate(spec.layers):
        kinds.setdefault(layer.window, []).append(index)
    size = math.gcd(*map(len, kinds.values()))
    return tuple(
        LayerGroup(window, tuple(layers[start : start + size]))
        for window, layers in kinds.items()
        for start in range(0, len(layers), size)
    )
