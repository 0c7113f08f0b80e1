"""Attention layers: what they remember and their weights."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.base.errors import ConfigError
from ullage.plan.architecture.defaults import QK_NORMS
from ullage.plan.architecture.fields import Fields
from ullage.plan.architecture.kinds import AttentionCache, CacheKind, IndexerCache, LatentCache
from ullage.plan.architecture.pattern import LayerKind
from ullage.plan.weights.tensors import Weight, linear, vector


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of one attention layer."""

    num_heads: int
    num_kv_heads: int
    k_head_dim: int
    v_head_dim: int


def head_shape(fields: Fields, kind: LayerKind) -> HeadShape:
    """Heads of a layer. Sliding layers may have dimensions of their own (MiMo-V2), and full layers too (Gemma 4).

    :raises ConfigError: heads that can't be shared out evenly
    """
    prefix = "swa_" if kind == "sliding" else "global_"
    own_heads = fields.optional_integer(f"{prefix}num_attention_heads")
    num_heads = own_heads or fields.integer("num_attention_heads", "n_head", "num_heads")
    own_kv = "swa_num_key_value_heads" if kind == "sliding" else "num_global_key_value_heads"
    num_kv_heads = fields.integer(own_kv, *_KV_HEADS, default=_default_kv_heads(fields, num_heads))
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"{fields.path}: num_key_value_heads {num_kv_heads} doesn't divide num_attention_heads {num_heads}"
        )
    k_head_dim = fields.optional_integer(f"{prefix}head_dim", "attention_head_dim", "head_dim", "kv_channels")
    if k_head_dim is None:
        hidden = fields.integer("hidden_size", "n_embd", "d_model")
        if hidden % num_heads:
            raise ConfigError(
                f"{fields.path}: num_attention_heads {num_heads} doesn't divide hidden_size {hidden}, with no head_dim"
            )
        k_head_dim = hidden // num_heads
    v_head_dim = fields.integer(f"{prefix}v_head_dim", "v_head_dim", default=k_head_dim)
    return HeadShape(num_heads, num_kv_heads, k_head_dim, v_head_dim)


_KV_HEADS = ("num_key_value_heads", "n_head_kv", "num_kv_heads", "multi_query_group_num")


def _default_kv_heads(fields: Fields, num_heads: int) -> int:
    """Without KV heads of their own all heads have keys and values; the multi-query switch means one."""
    return 1 if fields.boolean("multi_query", default=False) else num_heads


def grouped_attention(fields: Fields, kind: LayerKind, hidden: int) -> tuple[tuple[CacheKind, ...], tuple[Weight, ...]]:
    """Multi-head, grouped or multi-query attention, over everything, a window or a chunk.

    ``attention_k_eq_v`` (Gemma 4) leaves out a projection, not the cache: keys get a rotation that values don't have.
    """
    shape = head_shape(fields, kind)
    cache = AttentionCache(
        shape.num_kv_heads,
        shape.k_head_dim,
        shape.v_head_dim,
        window=fields.integer("sliding_window", "sliding_window_size") if kind == "sliding" else None,
        chunk=fields.integer("attention_chunk_size") if kind == "chunked" else None,
    )
    values_are_keys = kind == "full" and fields.boolean("attention_k_eq_v", default=False)
    weights = _grouped_weights(fields, shape, hidden, with_values=not values_are_keys)
    if kind != "full" or not fields.has("indexer_head_dim"):
        return (cache,), weights
    head_dim, num_heads = fields.integer("indexer_head_dim"), fields.integer("indexer_kv_heads", default=1)
    indexer = IndexerCache(head_dim, num_heads, pool=fields.integer("indexer_compress_ratio", default=1))
    queries = fields.integer("indexer_n_heads") * head_dim
    return (cache, indexer), (
        *weights,
        linear("self_attn.indexer.q_proj", queries, hidden, split="whole"),
        linear("self_attn.indexer.k_proj", num_heads * head_dim, hidden, split="whole"),
    )


def _grouped_weights(fields: Fields, shape: HeadShape, hidden: int, *, with_values: bool) -> tuple[Weight, ...]:
    inputs = fields.integer("attention_hidden_size", default=hidden)
    kv_heads = shape.num_kv_heads
    gates = 2 if fields.boolean("attn_output_gate", default=False) else 1
    query_rows = shape.num_heads * shape.k_head_dim * gates
    key_rows, value_rows = kv_heads * shape.k_head_dim, kv_heads * shape.v_head_dim
    weights = [
        linear("self_attn.q_proj", query_rows, inputs, split="rows"),
        linear("self_attn.k_proj", key_rows, inputs, split="kv_rows", heads=kv_heads),
        linear("self_attn.o_proj", hidden, shape.num_heads * shape.v_head_dim, split="columns"),
    ]
    if with_values:
        weights.append(linear("self_attn.v_proj", value_rows, inputs, split="kv_rows", heads=kv_heads))
    if fields.boolean("attention_bias", "qkv_bias", default=False):
        weights += [
            vector("self_attn.q_proj.bias", query_rows, split="rows"),
            vector("self_attn.k_proj.bias", key_rows, split="kv_rows", heads=kv_heads),
            vector("self_attn.v_proj.bias", value_rows, split="kv_rows", heads=kv_heads),
        ]
    if fields.text("model_type", default="") in QK_NORMS:
        weights += [vector("self_attn.q_norm", shape.k_head_dim), vector("self_attn.k_norm", shape.k_head_dim)]
    return tuple(weights)


def latent_cache(fields: Fields) -> LatentCache:
    """The cache of multi-head latent attention (DeepSeek V2 and after)."""
    return LatentCache(
        latent_dim=fields.integer("kv_lora_rank"),
        rope_dim=fields.integer("qk_rope_head_dim", at_least=0),
        num_heads=fields.integer("num_attention_heads"),
        nope_dim=fields.integer("qk_nope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
    )


def latent_attention(fields: Fields, hidden: int, *, indexed: bool) -> tuple[tuple[CacheKind, ...], tuple[Weight, ...]]:
    """Multi-head latent attention, with an indexer where the layer has one."""
    cache = latent_cache(fields)
    caches: tuple[CacheKind, ...] = (cache,)
    weights = _latent_weights(fields, cache, hidden)
    if indexed:
        head_dim = fields.integer("index_head_dim")
        pool = fields.integer("index_kpool", default=1)
        caches = (cache, IndexerCache(head_dim, pool=pool))
        weights += _indexer_weights(fields, head_dim, hidden)
    return caches, weights


def _latent_weights(fields: Fields, cache: LatentCache, hidden: int) -> tuple[Weight, ...]:
    queries = cache.num_heads * cache.k_head_dim
    query_rank = fields.optional_integer("q_lora_rank")
    query: tuple[Weight, ...]
    if query_rank is None:
        query = (linear("self_attn.q_proj", queries, hidden, split="rows"),)
    else:
        query = (
            linear("self_attn.q_a_proj", query_rank, hidden, split="whole"),
            vector("self_attn.q_a_layernorm", query_rank),
            linear("self_attn.q_b_proj", queries, query_rank, split="rows"),
        )
    expanded = cache.num_heads * (cache.nope_dim + cache.v_head_dim)
    return (
        *query,
        linear("self_attn.kv_a_proj_with_mqa", cache.latent_dim + cache.rope_dim, hidden, split="whole"),
        vector("self_attn.kv_a_layernorm", cache.latent_dim),
        linear("self_attn.kv_b_proj", expanded, cache.latent_dim, split="rows"),
        linear("self_attn.o_proj", hidden, cache.num_heads * cache.v_head_dim, split="columns"),
    )


def _indexer_weights(fields: Fields, head_dim: int, hidden: int) -> tuple[Weight, ...]:
    num_heads = fields.integer("index_n_heads")
    inputs = fields.integer("q_lora_rank", default=hidden)
    return (
        linear("self_attn.indexer.wq_b", num_heads * head_dim, inputs, split="whole"),
        linear("self_attn.indexer.wk", head_dim, hidden, split="whole"),
        vector("self_attn.indexer.k_norm", 2 * head_dim),
        Weight("self_attn.indexer.weights_proj", num_heads, hidden),
    )


def indexed_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Which layers have an indexer of their own; the others use the choice of the last one that has (GLM-5.2).

    A list or a pattern says it, or a period: layer ``i`` has one where ``max(i - offset + 1, 0)`` is a multiple of
    ``index_topk_freq`` (vLLM and transformers, glm_moe_dsa). Absent: all have.

    :raises ConfigError: a list of the wrong length, or a kind that isn't known
    """
    if not fields.has("index_topk"):
        return (False,) * num_layers
    fields.integer("index_topk")
    kinds = fields.texts("indexer_types")
    if kinds is None and fields.has("index_topk_pattern"):
        letters = {"F": "full", "S": "shared"}
        kinds = tuple(letters.get(letter, letter) for letter in fields.text("index_topk_pattern"))
    if kinds is None:
        period = fields.integer("index_topk_freq", default=1)
        offset = fields.integer("index_skip_topk_offset", default=2, at_least=0)
        return tuple(max(index - offset + 1, 0) % period == 0 for index in range(num_layers))
    if len(kinds) != num_layers:
        raise ConfigError(f"{fields.path}: indexer_types describes {len(kinds)} layers, not {num_layers}")
    for index, kind in enumerate(kinds):
        if kind not in ("full", "shared"):
            raise ConfigError(f"{fields.path}: indexer_types[{index}] is {kind!r}, a kind of indexer that isn't known")
    return tuple(kind == "full" for kind in kinds)
