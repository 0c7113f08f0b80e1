"""vLLM's groups: layers that share block tables, so that one pool of equal blocks serves every kind of cache.

Source of the rules: ``vllm/v1/core/kv_cache_utils.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ullage.base.errors import ConfigError
from ullage.plan.engines.request import EngineRequest
from ullage.plan.engines.vllm_pages import Page
from ullage.plan.sharing import stage_bounds


@dataclass(frozen=True, slots=True)
class Group:
    """Layers with one block table.

    :ivar page: a block of one of its layers
    :ivar layers: their positions among the model's caches
    """

    page: Page
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pool:
    """Groups that draw blocks from one pool.

    :ivar block_bytes: bytes of one block on one rank: one page of each layer of the largest group
    """

    groups: tuple[Group, ...]
    block_bytes: int

    def blocks_per_request(self, max_model_len: int, request: EngineRequest) -> int:
        """Blocks that one request of ``max_model_len`` tokens can come to hold, over all groups."""
        return sum(_blocks(group.page, max_model_len, request) for group in self.groups)

    def bytes_per_request(self, max_model_len: int, request: EngineRequest) -> int:
        """Bytes that vLLM holds against the memory it has: whole blocks, before 0.14 without layers that only pad."""
        if len(self.groups) == 1 or request.at_least(0, 14, unknown=True):
            return self.blocks_per_request(max_model_len, request) * self.block_bytes
        return sum(
            _blocks(group.page, max_model_len, request) * group.page.size_bytes * len(group.layers)
            for group in self.groups
        )

    def fixed_blocks_per_request(self, request: EngineRequest) -> int:
        """Of these, those of groups that don't grow with the request (windows, states)."""
        grown = 2**40
        growing = ("full", "mamba") if request.mamba_cache_mode == "all" else ("full",)
        return sum(_blocks(group.page, grown, request) for group in self.groups if group.page.kind not in growing)

    def needs_batched_tokens(self) -> bool:
        """Whether a request's share depends on the tokens of one step, as that of sliding layers does."""
        return any(group.page.kind in ("sliding", "chunked") for group in self.groups)


def pool_of(pages: tuple[Page, ...], request: EngineRequest) -> Pool:
    """The pool that every rank of a pipeline can follow; its block is that of the stage with most bytes.

    :raises ConfigError: pages that can't be made equal, or more stages than layers
    """
    if not pages:
        raise ConfigError("a model without any cache has no pool")
    if _are_full(pages) or len(set(pages)) == 1:
        return _one_group(pages, request)
    groups = _groups(_with_equal_pages(pages), request)
    size = groups[0].page.size_bytes
    largest = max(max(len(part) for part in stage) for stage in _stages(groups, len(pages), request))
    return Pool(groups, size * largest)


def _are_full(pages: tuple[Page, ...]) -> bool:
    """Layers that all keep every token share one table even where their pages differ (an indexer beside its layer)."""
    return all(page.kind == "full" for page in pages) and len({page.block_tokens for page in pages}) == 1


def _one_group(pages: tuple[Page, ...], request: EngineRequest) -> Pool:
    everything = Group(pages[0], tuple(range(len(pages))))
    stages = _stages((everything,), len(pages), request)
    return Pool((everything,), max(sum(pages[layer].size_bytes for layer in stage[0]) for stage in stages))


def _with_equal_pages(pages: tuple[Page, ...]) -> tuple[Page, ...]:
    """Layers with smaller pages get more tokens a block."""
    largest = max(page.size_bytes for page in pages)
    equal = []
    for page in pages:
        if largest % page.size_bytes:
            raise ConfigError(
                f"vLLM can't make pages of {page.size_bytes:,} and {largest:,} bytes equal",
                hint="another block size may do",
            )
        ratio = largest // page.size_bytes
        equal.append(replace(page, block_tokens=page.block_tokens * ratio, size_bytes=largest))
    return tuple(equal)


def _groups(pages: tuple[Page, ...], request: EngineRequest) -> tuple[Group, ...]:
    """Groups of as many layers as the rarest kind has; of the most frequent, where the two are close."""
    kinds: dict[Page, list[int]] = {}
    for layer, page in enumerate(pages):
        kinds.setdefault(page, []).append(layer)
    fewest, most = (bound(len(layers) for layers in kinds.values()) for bound in (min, max))
    size = most if most < fewest * _closeness(request) else fewest
    groups = []
    for page, layers in kinds.items():
        count = -(-len(layers) // size)
        groups += [Group(page, tuple(layers[first::count])) for first in range(count)]
    return tuple(groups)


def _closeness(request: EngineRequest) -> float:
    """Up to which ratio of layer counts the rarer kind is padded: none before 0.12, 1.25 before 0.18, then 1.5."""
    if request.at_least(0, 18, unknown=True):
        return 1.5
    return 1.25 if request.at_least(0, 12, unknown=True) else 1.0


def _stages(groups: tuple[Group, ...], num_layers: int, request: EngineRequest) -> list[list[tuple[int, ...]]]:
    """For each pipeline stage: which layers of each group it holds."""
    bounds = stage_bounds(num_layers, request.pipeline_parallel_size)
    return [[tuple(layer for layer in g.layers if first <= layer < last) for g in groups] for first, last in bounds]


def _blocks(page: Page, max_model_len: int, request: EngineRequest) -> int:
    if page.kind == "mamba" and request.mamba_cache_mode == "all":
        return -(-max_model_len // page.block_tokens)
    if page.kind == "mamba":
        blocks = 2 if request.mamba_cache_mode == "align" else 1
        return blocks + request.num_speculative_tokens
    if page.kind == "full":
        kept = -(-max_model_len // request.decode_context_parallel_size)  # ranks share the tokens of a request
        return -(-kept // page.block_tokens)
    batched = request.max_num_batched_tokens
    if batched is None:
        raise ConfigError(
            "max_num_batched_tokens isn't given",
            hint="sliding layers hold a window and the tokens of one step, so their share depends on it",
        )
    in_flight = batched * _steps_in_flight(request)
    if page.kind == "chunked":
        return -(-min(page.window + in_flight, max_model_len) // page.block_tokens)
    # a window needn't begin at the start of a block: one block more
    return -(-min(page.window - 1 + in_flight, max_model_len) // page.block_tokens) + 1


def _steps_in_flight(request: EngineRequest) -> int:
    """Steps whose tokens hold their blocks at once. Since 0.26 those that are scheduled ahead count as well."""
    return request.pipeline_parallel_size + 1 if request.at_least(0, 26, unknown=False) else 1
