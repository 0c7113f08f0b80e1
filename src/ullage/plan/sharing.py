"""How ranks share a model: KV heads among tensor-parallel ranks, layers among pipeline stages."""

from __future__ import annotations

from ullage.base.errors import ConfigError


def heads_per_rank(num_kv_heads: int, ranks: int) -> int:
    """Heads cut evenly; with more ranks than heads each keeps one, and some keep the same one.

    :raises ConfigError: neither divides the other
    """
    if num_kv_heads % ranks and ranks % num_kv_heads:
        raise ConfigError(
            f"tensor_parallel_size {ranks} and {num_kv_heads} KV heads don't divide each other",
            hint="use a number of ranks that divides the KV heads, or a multiple of them",
        )
    return max(1, num_kv_heads // ranks)


def stage_bounds(num_layers: int, num_stages: int) -> list[tuple[int, int]]:
    """First and last layer of each pipeline stage: even shares; what is left over goes to the last stages but one.

    :raises ConfigError: more stages than layers
    """
    if num_stages > num_layers:
        raise ConfigError(f"pipeline_parallel_size {num_stages} exceeds the {num_layers} layers")
    counts = [num_layers // num_stages] * num_stages
    for position in range(num_layers % num_stages):
        counts[-2 - position] += 1
    ends = [sum(counts[: stage + 1]) for stage in range(num_stages)]
    return [(end - count, end) for end, count in zip(ends, counts, strict=True)]
