"""The arithmetic as a person would write it down, filled in with this model's numbers."""

from __future__ import annotations

from collections import Counter

from ullage.base.byte_sizes import format_bytes
from ullage.plan.architecture import (
    AttentionCache,
    CacheKind,
    CompressedCache,
    IndexerCache,
    LatentCache,
    RecurrentState,
)
from ullage.plan.deployment.options import PlanOptions
from ullage.plan.deployment.sizing import Sizing
from ullage.plan.number_types import item_bytes, row_bytes
from ullage.plan.sharing import heads_per_rank

_ROW = 4096
"""Values of a row that any type fills in whole blocks."""


def weights_formula(sizing: Sizing, options: PlanOptions) -> str:
    """Parameters x bytes each, and how the ranks share them."""
    weights = sizing.weights
    each = weights.num_bytes / max(1, weights.parameters)
    text = f"{weights.parameters / 1e9:.3g} B parameters x {each:.3g} B ({weights.type_name})"
    parts = {
        "tensor": options.tensor_parallel,
        "pipeline": options.pipeline_parallel,
        "expert": options.expert_parallel,
    }
    shared = [f"{count} {name}" for name, count in parts.items() if count > 1]
    return f"{text}, shared by {' x '.join(shared)} parallel ranks; the fullest" if shared else text


def kv_formulas(sizing: Sizing, context: int) -> tuple[str, ...]:
    """Keys, values and states of one request on one rank, a line for each kind of layer."""
    caches = Counter(sizing.architecture.caches(sizing.request.mtp_layers))
    return tuple(_line(cache, count, sizing, context) for cache, count in caches.items())


def value_bytes(sizing: Sizing) -> float:
    """Bytes of one value of keys and values, scales included."""
    request = sizing.request
    default = {"llamacpp": "f16", "ullage": "bf16"}.get(request.engine_name, sizing.architecture.dtype)
    name = default if request.kv_dtype in (None, "auto") else str(request.kv_dtype)
    first, _, _ = name.partition("/")
    if first == "nvfp4":
        return 0.5625
    plain = first.removesuffix("_per_token_head").removesuffix("_ds_mla")
    return 0.5 if plain == "int4" else row_bytes(plain, _ROW, field="kv_dtype") / _ROW


def _line(cache: CacheKind, count: int, sizing: Sizing, context: int) -> str:
    layers = f"{count} {'layer' if count == 1 else 'layers'}"
    each = f"{value_bytes(sizing):g} B"
    if isinstance(cache, AttentionCache):
        return _attention(cache, count, layers, each, sizing, context)
    if isinstance(cache, LatentCache):
        values = cache.latent_dim + cache.rope_dim
        total = count * values * context * value_bytes(sizing)
        return (
            f"{layers} x ({cache.latent_dim} latent + {cache.rope_dim} rotary) x {context:,} tokens x {each}"
            f" = {format_bytes(round(total))}, whole on every tensor-parallel rank"
        )
    if isinstance(cache, IndexerCache):
        return f"{layers} of indexer: {cache.num_heads} x {cache.head_dim} keys in fp8 with scales, {context:,} tokens"
    if isinstance(cache, RecurrentState):
        matrix = cache.num_heads * cache.head_dim * cache.state_dim
        item = item_bytes(sizing.request.mamba_ssm_dtype or cache.dtype or sizing.architecture.dtype, field="dtype")
        return (
            f"{layers} of {cache.form} state: {cache.num_heads:,} heads x {cache.head_dim} x {cache.state_dim} x "
            f"{item} B = {format_bytes(count * matrix * item)}, whatever the context"
        )
    assert isinstance(cache, CompressedCache)
    return f"{layers} of compressed attention: a window of {cache.window:,} tokens, then one entry for {cache.ratio}"


def _attention(cache: AttentionCache, count: int, layers: str, each: str, sizing: Sizing, context: int) -> str:
    ranks = 1 if sizing.request.engine_name == "llamacpp" else sizing.request.tensor_parallel_size
    heads = heads_per_rank(cache.num_kv_heads, ranks)
    tokens = min(context, cache.window or context)
    seen = f"{tokens:,} tokens" + (" (window)" if cache.window and cache.window < context else "")
    total = count * heads * (cache.k_head_dim + cache.v_head_dim) * tokens * value_bytes(sizing)
    on_rank = " a rank" if ranks > 1 else ""
    if cache.k_head_dim == cache.v_head_dim:
        product = f"2 (K, V) x {layers} x {heads} KV heads{on_rank} x {cache.k_head_dim} x {seen} x {each}"
    else:
        sizes = f"({cache.k_head_dim} K + {cache.v_head_dim} V)"
        product = f"{layers} x {heads} KV heads{on_rank} x {sizes} x {seen} x {each}"
    return f"{product} = {format_bytes(round(total))}"
