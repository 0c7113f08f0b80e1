"""What SGLang prints about its pools at start-up ("GB" there means GiB).

Source of the rules: ``python/sglang/srt/mem_cache/memory_pool.py``: a pool has a row for each token and one page of
rows for padded tokens; the pool of states has one slot more than it serves.
"""

from __future__ import annotations

from ullage.base.errors import ConfigError
from ullage.plan.architecture import (
    Architecture,
    AttentionCache,
    CompressedCache,
    IndexerCache,
    LatentCache,
    RecurrentState,
)
from ullage.plan.engines.recurrent_bytes import convolution_values, matrix_values
from ullage.plan.engines.request import GIB, EngineReport, EngineRequest
from ullage.plan.engines.vllm_pages import SCALE_GROUP, packed_record_bytes
from ullage.plan.number_types import item_bytes
from ullage.plan.sharing import heads_per_rank

DEFAULT_STATE_TYPE = "float32"


def report(architecture: Architecture, request: EngineRequest) -> EngineReport:
    """Pools of keys and values, of sliding layers, of indexers and of states, each where its rows are given.

    :raises ConfigError: a kind of cache or a type without known rules
    """
    result = EngineReport()
    caches = architecture.caches(request.mtp_layers)
    if any(isinstance(cache, CompressedCache) for cache in caches):
        raise ConfigError("SGLang's pools for compressed attention (compress_ratios) aren't known")
    dtype = architecture.dtype if request.kv_dtype in (None, "auto") else str(request.kv_dtype)
    attention = [cache for cache in caches if isinstance(cache, AttentionCache)]
    apart = request.swa_tokens is not None
    everything = [cache for cache in attention if not apart or cache.window is None]
    sliding = [cache for cache in attention if apart and cache.window is not None]
    latent = [cache for cache in caches if isinstance(cache, LatentCache)]
    indexers = [cache for cache in caches if isinstance(cache, IndexerCache)]
    item = item_bytes(dtype, field="kv_dtype")
    _report_heads(result, request, everything, "", request.max_total_tokens, item)
    _report_heads(result, request, sliding, "swa_", request.swa_tokens, item)
    if latent:
        _report_latent(result, request, latent, indexers, dtype)
    elif not sliding:
        result.figures["kv_bytes_per_token"] = sum(_key_value_bytes(cache, request, item) for cache in everything)
    _report_states(architecture, result, request)
    return result


def _key_value_bytes(cache: AttentionCache, request: EngineRequest, item: int) -> int:
    return (
        heads_per_rank(cache.num_kv_heads, request.tensor_parallel_size) * item * (cache.k_head_dim + cache.v_head_dim)
    )


def _report_heads(
    result: EngineReport,
    request: EngineRequest,
    caches: list[AttentionCache],
    prefix: str,
    tokens: int | None,
    item: int,
) -> None:
    if not caches or tokens is None:
        return
    rows = tokens + (request.page_size or 1)
    heads = [heads_per_rank(cache.num_kv_heads, request.tensor_parallel_size) * item * rows for cache in caches]
    key = sum(head * cache.k_head_dim for head, cache in zip(heads, caches, strict=True))
    value = sum(head * cache.v_head_dim for head, cache in zip(heads, caches, strict=True))
    result.figures[f"{prefix}k_gib"], result.figures[f"{prefix}v_gib"] = key / GIB, value / GIB
    if prefix:
        result.figures["swa_tokens"] = tokens
    else:
        result.figures["capacity_tokens"] = tokens
        result.figures["kv_bytes"] = key + value
        result.figures["kv_gib"] = (key + value) / GIB


def _report_latent(
    result: EngineReport,
    request: EngineRequest,
    latent: list[LatentCache],
    indexers: list[IndexerCache],
    dtype: str,
) -> None:
    """One pool of latents, the same on every rank; sparse attention packs fp8 with its scales and adds indexers."""
    item = item_bytes(dtype, field="kv_dtype")
    packed = bool(indexers) and dtype.startswith("fp8")
    rates = [
        request.mla_record_bytes
        or (packed_record_bytes(cache) if packed else (cache.latent_dim + cache.rope_dim) * item)
        for cache in latent
    ]
    index_rate = sum(cache.num_heads * (cache.head_dim + cache.head_dim // SCALE_GROUP * 4) for cache in indexers)
    counted = sum(rates) + (index_rate if request.count_indexer else 0)
    result.figures["kv_bytes_per_token"] = counted
    if request.max_total_tokens is None:
        return
    rows = request.max_total_tokens + (request.page_size or 1)
    result.figures["capacity_tokens"] = request.max_total_tokens
    result.figures["kv_bytes"] = rows * counted
    result.figures["kv_gib"] = rows * counted / GIB
    if indexers:
        result.figures["indexer_gib"] = rows * index_rate / GIB


def _report_states(architecture: Architecture, result: EngineReport, request: EngineRequest) -> None:
    states = [cache for cache in architecture.caches() if isinstance(cache, RecurrentState)]
    if not states or request.mamba_slots is None:
        return
    rows, ranks = request.mamba_slots + 1, request.tensor_parallel_size
    model = item_bytes(architecture.dtype, field="dtype")
    convolution = sum(convolution_values(state, ranks) for state in states) * model
    matrix = sum(
        matrix_values(state, ranks)
        * item_bytes(request.mamba_ssm_dtype or state.dtype or DEFAULT_STATE_TYPE, field="mamba_ssm_dtype")
        for state in states
    )
    result.figures["conv_gib"], result.figures["ssm_gib"] = rows * convolution / GIB, rows * matrix / GIB
