"""TensorRT-LLM and LMDeploy: engines that say tokens or blocks, and keep each token of each layer the same way."""

from __future__ import annotations

from ullage.base.errors import ConfigError
from ullage.plan.architecture import Architecture, AttentionCache, LatentCache
from ullage.plan.engines.plausibility import check_agreement
from ullage.plan.engines.request import GIB, EngineReport, EngineRequest
from ullage.plan.number_types import item_bytes
from ullage.plan.sharing import heads_per_rank

TRTLLM_BLOCK = 64
LMDEPLOY_BLOCK = 64
LMDEPLOY_SCALES = 4
"""LMDeploy's int8 and int4 caches keep a scale and a zero point in fp16 per head, for keys and values each."""


def report_trtllm(architecture: Architecture, request: EngineRequest) -> EngineReport:
    """Bytes of the pool for the tokens it holds, or tokens for its bytes.

    :raises ConfigError: a kind of cache or a type without known rules
    """
    rate = _bytes_per_token(architecture, request, engine="TensorRT-LLM")
    block = request.block_size or TRTLLM_BLOCK
    return _report(request, rate, block)


def report_lmdeploy(architecture: Architecture, request: EngineRequest) -> EngineReport:
    """Blocks of 64 tokens.

    :raises ConfigError: a kind of cache or a type without known rules
    """
    rate = _bytes_per_token(architecture, request, engine="LMDeploy")
    return _report(request, rate, request.block_size or LMDEPLOY_BLOCK)


def _report(request: EngineRequest, rate: int, block: int) -> EngineReport:
    result = EngineReport()
    figures = result.figures
    figures["kv_bytes_per_token"] = rate
    tokens = request.capacity_tokens
    if tokens is None and request.num_gpu_blocks is not None:
        tokens = request.num_gpu_blocks * block
    if tokens is None and request.kv_memory_bytes is not None:
        tokens = request.kv_memory_bytes // (rate * block) * block
    if tokens is None:
        return result
    figures["block_tokens"] = block
    figures["num_gpu_blocks"] = tokens // block
    figures["capacity_tokens"] = tokens
    figures["kv_bytes"] = tokens * rate
    figures["kv_gib"] = tokens * rate / GIB
    if request.max_model_len is not None:
        figures["max_concurrency"] = tokens / request.max_model_len
    check_agreement(result, request, block_bytes=rate * block, tokens_per_block=block)
    return result


def _bytes_per_token(architecture: Architecture, request: EngineRequest, *, engine: str) -> int:
    dtype = architecture.dtype if request.kv_dtype in (None, "auto") else str(request.kv_dtype)
    rate = 0
    for cache in architecture.caches(request.mtp_layers):
        if isinstance(cache, LatentCache):
            rate += (cache.latent_dim + cache.rope_dim) * item_bytes(dtype, field="kv_dtype")
        elif isinstance(cache, AttentionCache):
            heads = heads_per_rank(cache.num_kv_heads, request.tensor_parallel_size)
            rate += heads * sum(_head(dtype, size, engine) for size in (cache.k_head_dim, cache.v_head_dim))
        else:
            raise ConfigError(f"{engine}'s rules for {type(cache).__name__} aren't known")
    return rate


def _head(dtype: str, num_values: int, engine: str) -> int:
    if dtype == "int4":
        return num_values // 2 + LMDEPLOY_SCALES
    scales = LMDEPLOY_SCALES if engine == "LMDeploy" and dtype == "int8" else 0
    return num_values * item_bytes(dtype, field="kv_dtype") + scales
