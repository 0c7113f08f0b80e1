"""How many KV heads a rank keeps."""

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
