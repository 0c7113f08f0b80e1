"""Bytes of keys, values and states that so many requests of such a length take on one rank, by engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ullage.base.errors import ConfigError
from ullage.plan.architecture import Architecture, AttentionCache
from ullage.plan.as_engine import ENGINES
from ullage.plan.engines import llamacpp, sglang
from ullage.plan.engines.request import GIB, EngineRequest
from ullage.plan.engines.vllm_layout import layout_of

KVDemand = Callable[[int, int], int]
"""From requests at once and tokens of each to bytes on one rank; grows with both."""

MIB = 1024**2
SLIDING_SHARE = 0.8
"""SGLang gives sliding layers this share of the tokens that others have (``swa_full_tokens_ratio``)."""
_POOLS_IN_GIB = ("swa_k_gib", "swa_v_gib", "conv_gib", "ssm_gib")
_BUFFERS_IN_MIB = ("kv_mib", "swa_mib", "indexer_mib", "r_mib", "s_mib")


def kv_demand(architecture: Architecture, request: EngineRequest) -> KVDemand:
    """:raises ConfigError: an engine or a kind of cache without known rules"""
    builders: Mapping[str, Callable[[Architecture, EngineRequest], KVDemand]] = {
        "vllm": _vllm,
        "sglang": _sglang,
        "llamacpp": _llamacpp,
        "trtllm": _plain,
        "lmdeploy": _plain,
    }
    return builders[request.engine_name](architecture, request)


def _vllm(architecture: Architecture, request: EngineRequest) -> KVDemand:
    layout = layout_of(architecture, request)
    pool = layout.pool
    if layout.unknown is not None:
        raise ConfigError(
            f"{layout.unknown} aren't known", hint="name a release whose rules are, with --engine-version"
        )
    if pool is None:
        return lambda requests, context: 0  # noqa: ARG005 - a model without any cache
    return lambda requests, context: requests * pool.blocks_per_request(context, request) * pool.block_bytes


def _sglang(architecture: Architecture, request: EngineRequest) -> KVDemand:
    windows = any(isinstance(cache, AttentionCache) and cache.window for cache in architecture.caches())

    def demand(requests: int, context: int) -> int:
        tokens = requests * context
        sliding = -(-tokens * int(SLIDING_SHARE * 10) // 10) if windows else None
        asked = replace(request, max_total_tokens=tokens, swa_tokens=sliding, mamba_slots=requests)
        figures = sglang.report(architecture, asked).figures
        heads = (figures.get("k_gib") or 0) + (figures.get("v_gib") or 0)
        main = heads or figures.get("kv_gib") or 0
        total = main + sum(figures.get(name) or 0 for name in _POOLS_IN_GIB)
        return -(-round(total * GIB) // request.pipeline_parallel_size)

    demand(1, 1)  # refused now, not later
    return demand


def _llamacpp(architecture: Architecture, request: EngineRequest) -> KVDemand:
    """Cells of one context that all slots share, over all devices."""
    devices = request.tensor_parallel_size * request.pipeline_parallel_size

    def demand(requests: int, context: int) -> int:
        asked = replace(request, n_ctx=requests * context, n_seq_max=requests)
        figures = llamacpp.report(architecture, asked).figures
        return -(-round(sum(figures.get(name) or 0 for name in _BUFFERS_IN_MIB) * MIB) // devices)

    demand(1, 1)
    return demand


def _plain(architecture: Architecture, request: EngineRequest) -> KVDemand:
    figures = ENGINES[request.engine_name](architecture, replace(request, capacity_tokens=1)).figures
    rate, block = int(figures["kv_bytes_per_token"] or 0), int(figures["block_tokens"] or 1)
    stages = request.pipeline_parallel_size
    return lambda requests, context: -(-requests * -(-context // block) * block * rate // stages)


def most(fits: Callable[[int], bool], at_most: int) -> int:
    """The largest number up to ``at_most`` that fits, where all smaller ones do too; 0: none."""
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
