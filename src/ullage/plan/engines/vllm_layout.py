"""vLLM's pool for a model: which groups there are, what a block costs, and what a request takes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ullage.plan.architecture import Architecture, CompressedCache, IndexerCache
from ullage.plan.engines import vllm_compressed
from ullage.plan.engines.request import EngineRequest
from ullage.plan.engines.vllm_groups import Pool, pool_of
from ullage.plan.engines.vllm_pages import kv_dtype, pages_of


@dataclass(frozen=True, slots=True)
class Layout:
    """A model's caches as vLLM lays them out on one rank.

    :ivar pool: None: the model has no cache, or its rules aren't known (``unknown`` says which)
    :ivar block_tokens: tokens in a block of attention that sees everything
    :ivar pad_percent: padding of pages of recurrent states; None: there are none
    :ivar bytes_per_token: what one more token takes; None: no single rate exists
    """

    pool: Pool | None
    block_tokens: int
    pad_percent: float | None = None
    bytes_per_token: int | None = None
    unknown: str | None = None


def layout_of(architecture: Architecture, request: EngineRequest) -> Layout:
    """:raises ConfigError: a kind of cache for which vLLM's rules aren't known, or heads that can't be shared out"""
    caches = architecture.caches(request.mtp_layers)
    compressed = [cache for cache in caches if isinstance(cache, CompressedCache)]
    if compressed:
        if not vllm_compressed.knows(request):
            return Layout(None, vllm_compressed.BLOCK, unknown="blocks of compressed attention from vLLM 0.23 on")
        pool = vllm_compressed.compressed_pool(compressed, kv_dtype(architecture, request), request)
        return Layout(pool, vllm_compressed.BLOCK)
    pages = pages_of(architecture, request)
    if not pages.layers:
        return Layout(None, pages.block_tokens)
    if pages.state_bytes is not None and any(isinstance(cache, IndexerCache) for cache in caches):
        unknown = "groups of recurrent states beside indexers"
        return Layout(None, pages.block_tokens, pages.pad_percent, unknown=unknown)
    uniform = all(page.kind == "full" for page in pages.layers)
    rate = sum(page.size_bytes for page in pages.layers) // pages.block_tokens if uniform else None
    return Layout(pool_of(pages.layers, request), pages.block_tokens, pages.pad_percent, rate)


def num_blocks_of(pool: Pool, request: EngineRequest) -> int | None:
    """Blocks of the pool: given, as many as the memory of a rank holds, or as many as tokens of one group need."""
    if request.num_gpu_blocks is not None:
        return request.num_gpu_blocks
    if request.kv_memory_bytes is not None:
        return request.kv_memory_bytes // pool.block_bytes
    if request.capacity_tokens is not None and len(pool.groups) == 1:
        return -(-request.capacity_tokens // pool.groups[0].page.block_tokens)
    return None


def request_is_known(pool: Pool, request: EngineRequest) -> bool:
    """Whether it is known how long a request may be, and how many tokens a step takes where that matters."""
    known_step = request.max_num_batched_tokens is not None or not pool.needs_batched_tokens()
    return request.max_model_len is not None and known_step


def concurrency(pool: Pool, num_blocks: int, max_model_len: int, request: EngineRequest) -> Fraction:
    """Requests of ``max_model_len`` tokens that fit at once. Before 0.9.1 tokens were divided, not whole blocks."""
    if not request.at_least(0, 9, 1, unknown=True):
        return Fraction(num_blocks * pool.groups[0].page.block_tokens, max_model_len)
    return Fraction(num_blocks, pool.blocks_per_request(max_model_len, request))


def capacity_tokens(pool: Pool, num_blocks: int, request: EngineRequest) -> int | None:
    """The "GPU KV cache size": blocks shared out among groups, or since 0.21 concurrency times length."""
    line = request.token_line or ("concurrency" if request.at_least(0, 21, unknown=False) else "blocks")
    if line == "blocks":
        smallest = min(group.page.block_tokens for group in pool.groups)
        return num_blocks // len(pool.groups) * smallest * request.decode_context_parallel_size
    if request.max_model_len is None or not request_is_known(pool, request):
        return None
    return int(concurrency(pool, num_blocks, request.max_model_len, request) * request.max_model_len)


def longest_request(pool: Pool, num_blocks: int, limit: int, request: EngineRequest) -> int:
    """The longest request up to ``limit`` tokens that the memory holds; 0: not even one token."""
    memory = max(request.kv_memory_bytes or 0, num_blocks * pool.block_bytes)
    shortest, longest = 0, limit
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        if pool.bytes_per_request(middle, request) <= memory:
            shortest = middle
        else:
            longest = middle - 1
    return shortest
