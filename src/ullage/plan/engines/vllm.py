"""What vLLM prints about its KV cache at start-up."""

from __future__ import annotations

from ullage.plan.architecture import Architecture
from ullage.plan.engines.plausibility import check_agreement, check_request
from ullage.plan.engines.request import GIB, EngineReport, EngineRequest
from ullage.plan.engines.vllm_groups import Pool
from ullage.plan.engines.vllm_layout import (
    capacity_tokens,
    concurrency,
    layout_of,
    longest_request,
    num_blocks_of,
    request_is_known,
)


def report(architecture: Architecture, request: EngineRequest) -> EngineReport:
    """The figures that follow from what was given: blocks from memory, tokens and concurrency from blocks.

    :raises ConfigError: a kind of cache or a type without known rules
    """
    layout = layout_of(architecture, request)
    result = EngineReport()
    result.figures["block_tokens"] = layout.block_tokens
    result.figures["mamba_pad_percent"] = layout.pad_percent
    result.figures["kv_bytes_per_token"] = layout.bytes_per_token
    if layout.unknown is not None:
        result.notes.append(f"{layout.unknown} aren't known, so nothing that follows from them is worked out")
    if layout.pool is None:
        return result
    num_blocks = num_blocks_of(layout.pool, request)
    if num_blocks is not None:
        _report_pool(layout.pool, num_blocks, request, result)
    if request_is_known(layout.pool, request):
        _report_request(architecture, request, layout.pool, num_blocks, result)
    elif request.max_model_len is not None:
        result.notes.append("figures per request need max_num_batched_tokens, which sliding layers depend on")
    if len(layout.pool.groups) == 1:
        check_agreement(result, request, block_bytes=layout.pool.block_bytes, tokens_per_block=layout.block_tokens)
    check_request(architecture, result, request)
    return result


def _report_pool(pool: Pool, num_blocks: int, request: EngineRequest, result: EngineReport) -> None:
    """Figures of the pool alone."""
    result.figures["num_gpu_blocks"] = num_blocks
    result.figures["kv_bytes"] = num_blocks * pool.block_bytes
    result.figures["kv_gib"] = num_blocks * pool.block_bytes / GIB
    result.figures["capacity_tokens"] = capacity_tokens(pool, num_blocks, request)


def _report_request(
    architecture: Architecture, request: EngineRequest, pool: Pool, num_blocks: int | None, result: EngineReport
) -> None:
    """Figures that depend on how long a request may be."""
    longest = request.max_model_len
    assert longest is not None
    result.figures["kv_gib_needed"] = pool.bytes_per_request(longest, request) / GIB
    if num_blocks is None:
        return
    result.figures["max_concurrency"] = float(concurrency(pool, num_blocks, longest, request))
    limit = max(longest, architecture.max_positions)
    result.figures["estimated_max_model_len"] = longest_request(pool, num_blocks, limit, request)
