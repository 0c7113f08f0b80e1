"""A pool of keys and values on one rank of a named engine: what a token costs, what a request costs, how many fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ullage.base.errors import ConfigError
from ullage.plan.architecture import Architecture
from ullage.plan.as_engine import engine_report
from ullage.plan.engines.request import EngineRequest
from ullage.plan.engines.vllm_groups import Group, Pool
from ullage.plan.engines.vllm_layout import layout_of

_STATE_UNITS: Mapping[str, int] = {"r_mib": 1024**2, "s_mib": 1024**2, "conv_gib": 1024**3, "ssm_gib": 1024**3}


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """Layers that are kept alike.

    :ivar kind: ``full``, ``sliding`` or ``mamba``
    :ivar block_tokens: tokens in one of its blocks
    :ivar page_bytes: a block of one layer
    :ivar blocks_per_request: blocks that a request of ``max_model_len`` tokens can hold; None: not known
    """

    kind: str
    num_layers: int
    block_tokens: int
    page_bytes: int
    window: int | None
    blocks_per_request: int | None


@dataclass(frozen=True, slots=True)
class KVMemory:
    """All in bytes on one rank. None where it can't be said or no single figure exists.

    :ivar bytes_per_token: what one more token takes
    :ivar fixed_bytes_per_request: what a request takes however short it is (windows, recurrent states)
    :ivar bytes_per_request: what one request of ``max_model_len`` tokens takes
    :ivar capacity_tokens: as the engine would print it
    """

    bytes_per_token: int | None
    fixed_bytes_per_request: int | None
    bytes_per_request: int | None
    groups: tuple[GroupMemory, ...]
    memory_bytes: int | None
    num_blocks: int | None
    capacity_tokens: int | None
    max_concurrency: float | None


def kv_memory(architecture: Architecture, request: EngineRequest) -> KVMemory:
    """Memory for keys, values and states as ``request.engine_name`` keeps them.

    :raises ConfigError: an unknown engine, or a kind of cache without known rules
    """
    report = engine_report(architecture, request).figures
    memory, blocks, tokens = (report.get(name) for name in ("kv_bytes", "num_gpu_blocks", "capacity_tokens"))
    groups: tuple[GroupMemory, ...] = ()
    fixed: int | None = 0
    per_request: int | None = None
    if request.engine_name == "vllm":
        pool = layout_of(architecture, request).pool
        known = pool is not None and (request.max_num_batched_tokens is not None or not pool.needs_batched_tokens())
        groups = () if pool is None else tuple(_group(group, request, known=known) for group in pool.groups)
        fixed = pool.fixed_blocks_per_request(request) * pool.block_bytes if pool is not None and known else None
        if pool is not None and known and request.max_model_len is not None:
            per_request = pool.blocks_per_request(request.max_model_len, request) * pool.block_bytes
    else:
        fixed = _state_bytes(architecture, request)
    return KVMemory(
        bytes_per_token=_whole(report.get("kv_bytes_per_token")),
        fixed_bytes_per_request=fixed,
        bytes_per_request=per_request,
        groups=groups,
        memory_bytes=_whole(memory),
        num_blocks=_whole(blocks),
        capacity_tokens=_whole(tokens),
        max_concurrency=report.get("max_concurrency"),
    )


def _group(group: Group, request: EngineRequest, *, known: bool) -> GroupMemory:
    blocks = None
    if known and request.max_model_len is not None:
        blocks = Pool((group,), group.page.size_bytes).blocks_per_request(request.max_model_len, request)
    page = group.page
    window = page.window or None
    return GroupMemory(page.kind, len(group.layers), page.block_tokens, page.size_bytes, window, blocks)


def _state_bytes(architecture: Architecture, request: EngineRequest) -> int | None:
    """Recurrent state of one request, from the difference that one more slot makes."""
    one = replace(request, n_seq_max=1, mamba_slots=1)
    two = replace(request, n_seq_max=2, mamba_slots=2)
    try:
        first, second = (engine_report(architecture, slots).figures for slots in (one, two))
    except ConfigError:
        return None
    rates = [(second.get(name) or 0, first.get(name) or 0, unit) for name, unit in _STATE_UNITS.items()]
    return round(sum((more - less) * unit for more, less, unit in rates))


def _whole(value: int | float | None) -> int | None:
    return None if value is None else int(value)
