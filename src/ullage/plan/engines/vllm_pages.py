"""vLLM's pages: the bytes of one block of one layer, by kind of cache.

Source of the rules: ``vllm/v1/kv_cache_interface.py`` (page sizes), ``vllm/model_executor/models/config.py`` and
``vllm/platforms/interface.py`` (blocks of hybrids), ``mamba_utils.py`` (shapes of states).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

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
from ullage.plan.engines.request import EngineRequest
from ullage.plan.number_types import head_bytes, item_bytes
from ullage.plan.sharing import heads_per_rank

DEFAULT_BLOCK = 16
SPARSE_BLOCK = 64
"""Kernels of sparse latent attention take blocks of 64 tokens only."""
LATENT_ALIGNMENT, LATENT_ALIGNMENT_SINCE_0_27 = 64, 128
"""What blocks of hybrids are a multiple of where attention is latent, and DEFAULT_BLOCK where it isn't."""
OLD_HEAD_SIZES = (32, 64, 128, 256)
"""What attention kernels took before latent attention had kernels of its own; other heads were padded."""
SCALE_GROUP = 128
"""Values that share one f32 scale in packed latent records and indexer keys."""


@dataclass(frozen=True, slots=True)
class Page:
    """One block of one layer.

    :ivar size_bytes: with padding
    :ivar window: tokens of the window or the chunk; 0: everything
    :ivar shape: layers share a group only where it is equal too
    """

    kind: Literal["full", "sliding", "chunked", "mamba"]
    block_tokens: int
    size_bytes: int
    window: int = 0
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of a model on one rank.

    :ivar layers: one page per cache, in layer order
    :ivar state_bytes: bytes of one recurrent state before padding; None: the model has none
    :ivar block_tokens: tokens in a block of attention that sees everything
    """

    layers: tuple[Page, ...]
    block_tokens: int
    state_bytes: int | None

    @property
    def pad_percent(self) -> float | None:
        """How much the pages of the states were padded to be as large as those of attention."""
        if self.state_bytes is None:
            return None
        padded = next(page.size_bytes for page in self.layers if page.kind == "mamba")
        return (padded - self.state_bytes) / self.state_bytes * 100


def pages_of(architecture: Architecture, request: EngineRequest) -> Pages:
    """:raises ConfigError: a kind of cache for which vLLM's rules aren't known, or heads that can't be shared out"""
    caches = architecture.caches(request.mtp_layers)
    states = [cache for cache in caches if isinstance(cache, RecurrentState)]
    sizes = [_state_bytes(state, architecture, request) for state in states]
    block = _block_tokens(caches, max(sizes, default=0), architecture, request)
    layers = [_page(cache, block, architecture, request) for cache in caches]
    if states:
        layers = _with_states_padded(layers, block, request)
    return Pages(tuple(layers), block, max(sizes) if sizes else None)


def _block_tokens(
    caches: tuple[CacheKind, ...], state_bytes: int, architecture: Architecture, request: EngineRequest
) -> int:
    """Tokens in a block. Hybrids grow it until a page of attention holds a whole state."""
    sparse = any(isinstance(cache, IndexerCache) for cache in caches)
    asked = request.block_size or (SPARSE_BLOCK if sparse else DEFAULT_BLOCK)
    attention = [cache for cache in caches if not isinstance(cache, RecurrentState)]
    if not state_bytes or not attention:
        return asked
    latent = any(isinstance(cache, LatentCache) for cache in attention)
    alignment = DEFAULT_BLOCK
    if latent:
        alignment = LATENT_ALIGNMENT_SINCE_0_27 if request.at_least(0, 27, unknown=False) else LATENT_ALIGNMENT
    rate = max(bytes_per_token(cache, architecture, request) for cache in attention)
    if request.mamba_cache_mode == "all":
        alignment = math.lcm(alignment, _chunk(caches))
    return max(asked, alignment * -(-state_bytes // (alignment * rate)))


def _chunk(caches: tuple[CacheKind, ...]) -> int:
    """Tokens that the recurrence takes at once; a state kept in every block must fall between two chunks."""
    chunks = {cache.chunk for cache in caches if isinstance(cache, RecurrentState)} - {None}
    if len(chunks) != 1:
        raise ConfigError(
            "mamba_cache_mode 'all' depends on the chunk of the recurrence, and the configuration has none",
            hint="none and align can be worked out",
        )
    return int(chunks.pop() or 1)


def _with_states_padded(layers: list[Page], block: int, request: EngineRequest) -> list[Page]:
    """States become as large as pages of attention, and take as many tokens: one block a request, or one per block."""
    attention = max((page.size_bytes for page in layers if page.kind != "mamba"), default=0)
    once = request.mamba_cache_mode not in ("align", "all")
    state_tokens = request.max_model_len or 2**40 if once else block
    return [
        replace(page, size_bytes=max(page.size_bytes, attention), block_tokens=state_tokens)
        if page.kind == "mamba"
        else page
        for page in layers
    ]


def _page(cache: CacheKind, block: int, architecture: Architecture, request: EngineRequest) -> Page:
    if isinstance(cache, RecurrentState):
        return Page("mamba", block, _state_bytes(cache, architecture, request))
    rate = bytes_per_token(cache, architecture, request)
    if not isinstance(cache, AttentionCache):
        pooled = cache.pool if isinstance(cache, IndexerCache) else 1
        return Page("full", block, rate * (block // pooled), shape=(1, rate))
    shape = (heads_per_rank(cache.num_kv_heads, request.tensor_parallel_size), cache.k_head_dim, cache.v_head_dim)
    if cache.window is not None and separate_windows(request):
        return Page("sliding", block, rate * block, cache.window, shape)
    if cache.chunk is not None and separate_chunks(request):
        return Page("chunked", block, rate * block, cache.chunk, shape)
    return Page("full", block, rate * block, shape=shape)


def separate_windows(request: EngineRequest) -> bool:
    """Whether sliding layers have groups of their own. Before 0.9.1 they were kept like full ones."""
    return request.at_least(0, 9, 1, unknown=True)


def separate_chunks(request: EngineRequest) -> bool:
    """Whether layers within chunks have groups of their own: from 0.9.2 on, but not by default in 0.10.1 to 0.12."""
    if request.at_least(0, 10, 1, unknown=True) and not request.at_least(0, 13, unknown=True):
        return False
    return request.at_least(0, 9, 2, unknown=True)


def bytes_per_token(cache: CacheKind, architecture: Architecture, request: EngineRequest) -> int:
    """Bytes of one token (of one entry, where tokens share it) in one layer on one rank; 0 for recurrent states.

    :raises ConfigError: a type that isn't known, or a kind of cache without known rules
    """
    ranks, dtype = request.tensor_parallel_size, kv_dtype(architecture, request)
    if isinstance(cache, AttentionCache):
        heads = heads_per_rank(cache.num_kv_heads, ranks)
        key, value = (head_bytes(dtype, size, field="kv_dtype") for size in (cache.k_head_dim, cache.v_head_dim))
        return heads * (key + value)
    if isinstance(cache, LatentCache):
        return _latent_bytes(cache, architecture, request)
    if isinstance(cache, IndexerCache):
        return cache.num_heads * (cache.head_dim + cache.head_dim // SCALE_GROUP * 4)
    if isinstance(cache, CompressedCache):
        raise ConfigError("vLLM's blocks for compressed attention (compress_ratios) aren't known")
    return 0


def kv_dtype(architecture: Architecture, request: EngineRequest) -> str:
    """The type of keys and values; not given or ``auto``: the model's."""
    return architecture.dtype if request.kv_dtype in (None, "auto") else str(request.kv_dtype)


def _latent_bytes(cache: LatentCache, architecture: Architecture, request: EngineRequest) -> int:
    """Latent and rotary part, the same on every rank; sparse attention packs them with scales in fp8."""
    dtype = kv_dtype(architecture, request)
    if request.mla_disabled:
        heads = heads_per_rank(cache.num_heads, request.tensor_parallel_size)
        return 2 * heads * _old_head_size(cache, request) * item_bytes(dtype, field="kv_dtype")
    if request.mla_record_bytes is not None:
        return request.mla_record_bytes
    sparse = any(isinstance(other, IndexerCache) for other in architecture.caches())
    if sparse and dtype.startswith("fp8"):
        return packed_record_bytes(cache)
    return (cache.latent_dim + cache.rope_dim) * item_bytes(dtype, field="kv_dtype")


def packed_record_bytes(cache: LatentCache) -> int:
    """A token of latent attention in fp8: latent in fp8, an f32 scale per 128 values, rotary part in bf16."""
    return cache.latent_dim + cache.latent_dim // SCALE_GROUP * 4 + cache.rope_dim * 2


def _old_head_size(cache: LatentCache, request: EngineRequest) -> int:
    """Values as wide as keys; before 0.7 both padded to a size that kernels took."""
    if request.at_least(0, 7, unknown=False):
        return cache.k_head_dim
    for size in OLD_HEAD_SIZES:
        if cache.k_head_dim <= size:
            return size
    raise ConfigError(f"vLLM before 0.7 took heads of at most {OLD_HEAD_SIZES[-1]} values, not {cache.k_head_dim}")


def _state_bytes(state: RecurrentState, architecture: Architecture, request: EngineRequest) -> int:
    """Convolution in the model's type, with a row for each draft token; matrix in the type of the configuration."""
    ranks = request.tensor_parallel_size
    model = item_bytes(architecture.dtype, field="dtype")
    matrix = item_bytes(request.mamba_ssm_dtype or state.dtype or architecture.dtype, field="mamba_ssm_dtype")
    rows = convolution_values(state, ranks, extra_rows=request.num_speculative_tokens)
    return rows * model + matrix_values(state, ranks) * matrix
