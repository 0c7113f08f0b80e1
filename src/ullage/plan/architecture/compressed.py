"""Attention over compressed tokens beside a sliding window (DeepSeek V4)."""

from __future__ import annotations

from ullage.base.errors import ConfigError
from ullage.plan.architecture.fields import Fields
from ullage.plan.architecture.kinds import CacheKind, CompressedCache
from ullage.plan.weights.tensors import Weight, linear, vector

SPARSE_RATIO = 4
"""Layers that compress four tokens into one choose among them with an indexer; those that compress more read all."""


def compression_ratios(fields: Fields, num_layers: int) -> tuple[int, ...] | None:
    """Tokens per compressed entry of each layer (0: window only); None: a model without compression.

    The list may go on with the layers of the prediction head.

    :raises ConfigError: fewer entries than layers
    """
    ratios = fields.integers("compress_ratios")
    if ratios is None:
        return None
    if len(ratios) < num_layers:
        raise ConfigError(f"{fields.path}: compress_ratios describes {len(ratios)} layers, not {num_layers}")
    return ratios[:num_layers]


def compressed_attention(fields: Fields, hidden: int, ratio: int) -> tuple[tuple[CacheKind, ...], tuple[Weight, ...]]:
    """One layer: a window of single tokens, entries of ``ratio`` tokens, and an indexer over them."""
    head_dim, num_heads = fields.integer("head_dim"), fields.integer("num_attention_heads")
    index_head_dim = fields.integer("index_head_dim") if ratio == SPARSE_RATIO else None
    rope_dim = fields.integer("qk_rope_head_dim", at_most=head_dim)
    cache = CompressedCache(head_dim, rope_dim, fields.integer("sliding_window"), ratio, index_head_dim)
    return (cache,), _weights(fields, hidden, head_dim, num_heads, ratio, index_head_dim)


def _weights(
    fields: Fields, hidden: int, head_dim: int, num_heads: int, ratio: int, index_head_dim: int | None
) -> tuple[Weight, ...]:
    query_rank = fields.integer("q_lora_rank")
    output_rank, groups = fields.integer("o_lora_rank"), fields.integer("o_groups")
    width = num_heads * head_dim
    weights = [
        linear("self_attn.wq_a", query_rank, hidden, split="whole"),
        vector("self_attn.q_norm", query_rank),
        linear("self_attn.wq_b", width, query_rank, split="rows"),
        linear("self_attn.wkv", head_dim, hidden, split="whole"),
        vector("self_attn.kv_norm", head_dim),
        linear("self_attn.wo_a", groups * output_rank, width // groups, split="rows"),
        linear("self_attn.wo_b", hidden, groups * output_rank, split="columns"),
    ]
    if ratio:
        overlap = 2 if ratio == SPARSE_RATIO else 1  # neighbouring entries overlap, so each token counts twice
        weights.append(Weight("self_attn.compressor.wkv_gate", 2 * overlap * head_dim, hidden))
        weights.append(Weight("self_attn.compressor.ape", ratio, overlap * head_dim, float32=True))
    if index_head_dim is not None:
        rows = fields.integer("index_n_heads") * index_head_dim
        weights.append(linear("self_attn.indexer.wq_b", rows, query_rank, split="whole"))
        weights.append(Weight("self_attn.indexer.weights_proj", fields.integer("index_n_heads"), hidden))
        weights.append(Weight("self_attn.indexer.compressor.wkv_gate", 4 * index_head_dim, hidden))
    return tuple(weights)
