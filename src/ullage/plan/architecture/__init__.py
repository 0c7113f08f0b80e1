"""What a model's configuration says about its memory, before any engine's rules."""

from ullage.plan.architecture.kinds import (
    Architecture,
    AttentionCache,
    CacheKind,
    CompressedCache,
    IndexerCache,
    LatentCache,
    Layer,
    RecurrentState,
)
from ullage.plan.architecture.reader import architecture_of

__all__ = [
    "Architecture",
    "AttentionCache",
    "CacheKind",
    "CompressedCache",
    "IndexerCache",
    "LatentCache",
    "Layer",
    "RecurrentState",
    "architecture_of",
]
