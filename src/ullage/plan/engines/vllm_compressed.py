"""vLLM's groups for compressed attention (DeepSeek V4): pages of several sizes in one pool.

Source of the rules: ``vllm/models/deepseek_v4/{attention,compressor}.py``, ``sparse_swa.py`` (blocks and pages) and
``kv_cache_utils.py`` (``_get_kv_cache_groups_uniform_groups``), as of 0.22. Every layer has a window of single tokens;
a layer that compresses also has compressed entries and the running state of its compressor, and one that chooses among
entries an indexer with both of these.
"""

from __future__ import annotations

from collections import Counter

from ullage.base.errors import ConfigError
from ullage.plan.architecture import CompressedCache
from ullage.plan.engines.request import EngineRequest
from ullage.plan.engines.vllm_groups import Group, Pool
from ullage.plan.engines.vllm_pages import SCALE_GROUP, Page

BLOCK = 256
WINDOW_BLOCK = 64
STATE_BLOCKS = {4: 4, 128: 8}
"""Tokens in a block of a compressor's state, by how many tokens it compresses."""
ALIGNMENT = 576
SCALED_VALUES = 64
"""Values of a compressed entry that share a one-byte scale; there is one byte of padding."""
REPLACED_IN = (0, 23)
"""Later releases pack the pages of a block side by side; those rules aren't known here."""


def knows(request: EngineRequest) -> bool:
    """Whether the rules of this release are known."""
    return not request.at_least(*REPLACED_IN, unknown=False)


def compressed_pool(caches: list[CompressedCache], dtype: str, request: EngineRequest) -> Pool:
    """The pool of a model whose layers all have such caches.

    :param dtype: type of keys and values
    :raises ConfigError: a type or a ratio that vLLM doesn't take, or pipeline stages
    """
    if not dtype.startswith("fp8"):
        raise ConfigError(f"vLLM keeps compressed attention in fp8 only, not in {dtype}")
    if request.pipeline_parallel_size > 1:
        raise ConfigError("vLLM's pools for compressed attention over pipeline stages aren't known")
    entries: Counter[int] = Counter()
    sliding: dict[tuple[int, int], Counter[int]] = {}
    for cache in caches:
        _add_layer(cache, entries, sliding)
    if not entries:
        raise ConfigError("compress_ratios has no layer that compresses; vLLM's rules for that aren't known")
    depths = [max(entries.values()), *(max(sizes.values()) for sizes in sliding.values())]
    depth = _depth(depths)
    groups = [Group(Page("full", BLOCK, sum(entries)), tuple(range(max(entries.values()))))]
    widest = 0
    for (block, window), sizes in sliding.items():
        layers = max(sizes.values())
        count = -(-layers // depth)
        groups += [
            Group(Page("sliding", block, max(sizes), window), tuple(range(n, layers, count))) for n in range(count)
        ]
        widest = max(widest, -(-layers // count))
    return Pool(tuple(groups), sum(entries) * max(widest, max(entries.values())))


def _add_layer(cache: CompressedCache, entries: Counter[int], sliding: dict[tuple[int, int], Counter[int]]) -> None:
    """Count a layer's pages by size: compressed entries, and by block and window what slides."""
    token = cache.head_dim - cache.rope_dim + 2 * cache.rope_dim  # fp8, the rotary part in bf16
    token += (cache.head_dim - cache.rope_dim) // SCALED_VALUES + 1
    sliding.setdefault((WINDOW_BLOCK, cache.window), Counter())[_page(WINDOW_BLOCK * token)] += 1
    if not cache.ratio:
        return
    if cache.ratio not in STATE_BLOCKS:
        raise ConfigError(f"compress_ratios has {cache.ratio}, which vLLM doesn't take", hint="it takes 0, 4 and 128")
    overlap = 2 if cache.index_head_dim is not None else 1
    block, window = STATE_BLOCKS[cache.ratio], overlap * cache.ratio
    states = sliding.setdefault((block, window), Counter())
    entries[_page(BLOCK // cache.ratio * token)] += 1
    states[_page(block * _state_bytes(cache.head_dim, overlap))] += 1
    if cache.index_head_dim is not None:
        key = cache.index_head_dim + cache.index_head_dim // SCALE_GROUP * 4
        entries[_page(BLOCK // cache.ratio * key)] += 1
        states[_page(block * _state_bytes(cache.index_head_dim, overlap))] += 1


def _state_bytes(head_dim: int, overlap: int) -> int:
    """A token in a compressor's state: its values and its scores in f32, twice where entries overlap."""
    return 2 * overlap * head_dim * 4


def _page(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _depth(depths: list[int]) -> int:
    """Layers per group that pad least; of equals the largest; never fewer than the compressed entries have."""
    choices = range(depths[0], max(depths) + 1)
    return min(choices, key=lambda depth: (sum(-layers % depth for layers in depths), -depth))
