"""What vLLM prints about its KV cache at start-up."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from ullage.plan.architecture import Architecture
from ullage.plan.engines.plausibility import check_agreement, check_request
from ullage.plan.engines.request import GIB, EngineReport, EngineRequest
from ullage.plan.engines.vllm_groups import Pool, pool_of
from ullage.plan.engines.vllm_pages import Pages, bytes_per_token, pages_of


def report(architecture: Architecture, request: EngineRequest) -> EngineReport:
    """The figures that follow from what was given: blocks from memory, tokens and concurrency from blocks.

    :raises ConfigError: a kind of cache or a type without known rules
    """
    pages = pages_of(architecture, request)
    result = EngineReport()
    figures = result.figures
    figures["block_tokens"] = pages.block_tokens
    figures["mamba_pad_percent"] = pages.pad_percent
    figures["kv_bytes_per_token"] = _rate(architecture, request, pages)
    if not pages.layers:
        return result
    pool = pool_of(pages.layers, request)
    num_blocks = num_blocks_of(pool, request)
    if num_blocks is not None:
        figures["num_gpu_blocks"] = num_blocks
        figures["kv_bytes"] = num_blocks * pool.block_bytes
        figures["kv_gib"] = num_blocks * pool.block_bytes / GIB
        figures["capacity_tokens"] = _tokens(pool, num_blocks, request)
    if request.max_model_len is not None and _request_is_known(pool, request):
        _report_request(architecture, request, pool, num_blocks, request.max_model_len, figures)
    elif request.max_model_len is not None:
        result.notes.append("figures per request need max_num_batched_tokens, which sliding layers depend on")
    if len(pool.groups) == 1:
        check_agreement(result, request, block_bytes=pool.block_bytes, tokens_per_block=pages.block_tokens)
    check_request(architecture, result, request)
    return result


def num_blocks_of(pool: Pool, request: EngineRequest) -> int | None:
    """Blocks of the pool: given, or as many as the memory of a rank holds."""
    if request.num_gpu_blocks is not None:
        return request.num_gpu_blocks
    if request.kv_memory_bytes is None:
        return None
    return request.kv_memory_bytes // pool.block_bytes


def _rate(architecture: Architecture, request: EngineRequest, pages: Pages) -> int | None:
    """Bytes that one more token takes on one rank, where it is the same for every token."""
    if any(page.kind != "full" for page in pages.layers):
        return None
    caches = architecture.caches(request.mtp_layers)
    return sum(page.size_bytes for page in pages.layers) // pages.block_tokens if caches else None


def _report_request(
    architecture: Architecture,
    request: EngineRequest,
    pool: Pool,
    num_blocks: int | None,
    longest: int,
    figures: dict[str, int | float | None],
) -> None:
    """Figures that depend on how long a request may be."""
    needed = pool.blocks_per_request(longest, request)
    figures["kv_gib_needed"] = needed * pool.block_bytes / GIB
    if num_blocks is None:
        return
    figures["max_concurrency"] = float(concurrency(pool, num_blocks, longest, request))
    limit = max(longest, architecture.max_positions)
    figures["estimated_max_model_len"] = _longest(
        lambda length: pool.blocks_per_request(length, request) <= num_blocks, limit
    )


def concurrency(pool: Pool, num_blocks: int, max_model_len: int, request: EngineRequest) -> Fraction:
    """Requests of ``max_model_len`` tokens that fit at once. Before 0.9.1 tokens were divided, not whole blocks."""
    if not request.at_least(0, 9, 1, unknown=True):
        return Fraction(num_blocks * pool.groups[0].page.block_tokens, max_model_len)
    return Fraction(num_blocks, pool.blocks_per_request(max_model_len, request))


def _tokens(pool: Pool, num_blocks: int, request: EngineRequest) -> int | None:
    """ "GPU KV cache size": blocks shared out among groups, or since 0.21 concurrency times length."""
    line = request.token_line or ("concurrency" if request.at_least(0, 21, unknown=False) else "blocks")
    if line == "concurrency":
        if request.max_model_len is None or not _request_is_known(pool, request):
            return None
        return int(concurrency(pool, num_blocks, request.max_model_len, request) * request.max_model_len)
    smallest = min(group.page.block_tokens for group in pool.groups)
    return num_blocks // len(pool.groups) * smallest


def _request_is_known(pool: Pool, request: EngineRequest) -> bool:
    return request.max_num_batched_tokens is not None or not pool.needs_batched_tokens()


def _longest(fits: Callable[[int], bool], limit: int) -> int:
    """The largest length up to ``limit`` that fits; 0: not even one token."""
    shortest, longest = 0, limit
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        if fits(middle):
            shortest = middle
        else:
            longest = middle - 1
    return shortest


def bytes_of_token(architecture: Architecture, request: EngineRequest) -> int:
    """Bytes that one token takes on one rank in layers that keep every token."""
    caches = architecture.caches(request.mtp_layers)
    return sum(bytes_per_token(cache, architecture, request) for cache in caches)
