"""What llama.cpp prints about its caches at start-up.

Source of the rules: ``src/llama-kv-cache*.cpp`` (cells, sliding layers, indexers), ``llama-memory-recurrent.cpp`` and
``llama-hparams.cpp`` (states, always f32).
"""

from __future__ import annotations

from ullage.base.errors import ConfigError
from ullage.plan.architecture import (
    Architecture,
    AttentionCache,
    CacheKind,
    CompressedCache,
    IndexerCache,
    LatentCache,
    RecurrentState,
)
from ullage.plan.engines.recurrent_bytes import convolution_values, matrix_values
from ullage.plan.engines.request import EngineReport, EngineRequest
from ullage.plan.number_types import row_bytes

MIB = 1024**2
STATE_ITEM = 4
SLIDING_PADDING = 256
SLIDING_SINCE = 5432
"""Builds before kept sliding layers like full ones (pull request 13194, May 2025)."""
LATENT_ONLY_SINCE = 7832
"""Builds before kept the latent once more, as values (pull request 19067, January 2026)."""
INDEXER_KEYS_ONLY_SINCE = 10889
"""Builds before allocated values for the indexer of models without latent attention, and never used them."""


def report(architecture: Architecture, request: EngineRequest) -> EngineReport:
    """Buffers over all devices. ``n_ctx`` is the whole context as printed, shared by the slots.

    :raises ConfigError: a kind of cache without known rules, or a type that can't hold a row
    """
    result = EngineReport()
    caches = architecture.caches()
    if any(isinstance(cache, CompressedCache) for cache in caches):
        raise ConfigError("llama.cpp's cells for compressed attention (compress_ratios) aren't known")
    _report_states(result, request, [cache for cache in caches if isinstance(cache, RecurrentState)])
    latent = [cache for cache in caches if isinstance(cache, LatentCache)]
    attention = [cache for cache in caches if isinstance(cache, AttentionCache)]
    # a model whose layers all slide (Mistral, Phi-3) is converted without its window
    apart = any(cache.window is None for cache in attention) and request.at_least(SLIDING_SINCE, unknown=True)
    sliding = [cache for cache in attention if apart and cache.window is not None]
    everything = [cache for cache in attention if not apart or cache.window is None]
    result.figures["kv_bytes_per_token"] = (
        None
        if sliding
        else sum(_latent_row(c, request) for c in latent) + sum(sum(_rows(c, request)) for c in everything)
    )
    if request.n_ctx is None:
        return result
    if latent:
        _report_latent(result, request, latent)
    elif everything:
        _report_cells(result, request, everything, "", request.n_ctx)
    if sliding:
        _report_sliding(result, request, sliding)
    _report_indexers(result, request, caches)
    return result


def _types(request: EngineRequest) -> tuple[str, str]:
    """Types of keys and values: given apart, or in one name like ``q8_0/fp16``; the default is f16."""
    key, _, value = (request.kv_dtype or "f16").partition("/")
    return request.type_k or key, request.type_v or value or key


def _rows(cache: AttentionCache, request: EngineRequest) -> tuple[int, int]:
    """Bytes of the keys and of the values of one cell in one layer."""
    type_k, type_v = _types(request)
    keys = row_bytes(type_k, cache.num_kv_heads * cache.k_head_dim, field="type_k")
    return keys, row_bytes(type_v, cache.num_kv_heads * cache.v_head_dim, field="type_v")


def _report_cells(
    result: EngineReport, request: EngineRequest, caches: list[AttentionCache], prefix: str, cells: int
) -> None:
    rows = [_rows(cache, request) for cache in caches]
    keys, values = (cells * sum(row[part] for row in rows) for part in (0, 1))
    result.figures[f"{prefix}k_mib"], result.figures[f"{prefix}v_mib"] = keys / MIB, values / MIB
    result.figures[f"{prefix}mib" if prefix else "kv_mib"] = (keys + values) / MIB
    if not prefix:
        result.figures["kv_bytes"] = keys + values


def _report_sliding(result: EngineReport, request: EngineRequest, caches: list[AttentionCache]) -> None:
    """Sliding layers keep the window (of every slot, where slots share a buffer) and one batch, padded."""
    assert request.n_ctx is not None
    streams = 1 if request.kv_unified else request.n_seq_max
    context = request.n_ctx // streams
    window = max(cache.window or 0 for cache in caches) * (request.n_seq_max if request.kv_unified else 1)
    needed = min(context, window + request.n_ubatch)
    cells = context if request.swa_full else -(-needed // SLIDING_PADDING) * SLIDING_PADDING
    result.figures["swa_cells"] = cells
    _report_cells(result, request, caches, "swa_", cells * streams)


def _form(request: EngineRequest) -> str:
    return request.mla or ("latent" if request.at_least(LATENT_ONLY_SINCE, unknown=True) else "latent+v")


def _latent_row(cache: LatentCache, request: EngineRequest) -> int:
    return sum(_latent_parts(cache, request))


def _latent_parts(cache: LatentCache, request: EngineRequest) -> tuple[int, int]:
    """Bytes of the keys and of the values of one cell: the latent, the latent twice, or heads of full size."""
    type_k, type_v = _types(request)
    if _form(request) == "expanded":
        keys = row_bytes(type_k, cache.num_heads * cache.k_head_dim, field="type_k")
        return keys, row_bytes(type_v, cache.num_heads * cache.v_head_dim, field="type_v")
    keys = row_bytes(type_k, cache.latent_dim + cache.rope_dim, field="type_k")
    return keys, row_bytes(type_v, cache.latent_dim, field="type_v") if _form(request) == "latent+v" else 0


def _report_latent(result: EngineReport, request: EngineRequest, caches: list[LatentCache]) -> None:
    assert request.n_ctx is not None
    figures, cells = result.figures, request.n_ctx
    parts = [_latent_parts(cache, request) for cache in caches]
    keys, values = (cells * sum(part[kind] for part in parts) for kind in (0, 1))
    figures["k_mib"], figures["v_mib"], figures["kv_mib"] = keys / MIB, values / MIB, (keys + values) / MIB
    figures["kv_bytes"] = keys + values
    if _form(request) == "latent":
        type_k, _ = _types(request)
        rope = cells * sum(row_bytes(type_k, cache.rope_dim, field="type_k") for cache in caches)
        figures["rope_k_mib"], figures["latent_mib"] = rope / MIB, (keys - rope) / MIB


def _report_indexers(result: EngineReport, request: EngineRequest, caches: tuple[CacheKind, ...]) -> None:
    """A second cache of one key head a layer; without latent attention older builds gave it values as well."""
    indexers = [cache for cache in caches if isinstance(cache, IndexerCache)]
    if not indexers:
        return
    assert request.n_ctx is not None
    type_k, type_v = _types(request)
    heads = [cache for cache in caches if isinstance(cache, AttentionCache)]
    if not heads and any(cache.pool > 1 for cache in indexers):
        raise ConfigError("llama.cpp's cells for pooled indexers (index_kpool) aren't known")
    keys = sum(row_bytes(type_k, cache.num_heads * cache.head_dim, field="type_k") for cache in indexers)
    values = 0
    if heads and not request.at_least(INDEXER_KEYS_ONLY_SINCE, unknown=False):
        values = sum(row_bytes(type_v, cache.num_heads * heads[0].v_head_dim, field="type_v") for cache in indexers)
    figures, cells = result.figures, request.n_ctx
    figures["indexer_k_mib"], figures["indexer_v_mib"] = cells * keys / MIB, cells * values / MIB
    figures["indexer_mib"] = cells * (keys + values) / MIB


def _report_states(result: EngineReport, request: EngineRequest, states: list[RecurrentState]) -> None:
    """One state a slot, and one more for every token that speculation may take back; always f32."""
    if not states:
        return
    copies = request.n_seq_max * (1 + request.rs_seq)
    convolution = sum(convolution_values(state, 1) for state in states)
    matrix = sum(matrix_values(state, 1) for state in states)
    result.figures["r_mib"] = copies * convolution * STATE_ITEM / MIB
    result.figures["s_mib"] = copies * matrix * STATE_ITEM / MIB
