"""The memory of a deployment, worked out before anything is allocated.

    weights    every tensor, packed as the runner holds it
    kv_pool    2 (K and V) x layers of a group x KV heads x head size x bytes per element, x tokens in the pool
    workspace  scratch memory of one step of max_num_batched_tokens tokens
    logits     one row of the vocabulary per sequence of a step
    runtime    the interpreter, its libraries and the tokenizer, of all processes, as measured when the plan is made
    headroom   what stays free of the memory this process may use

The runners allocate exactly this from the ledger; the engine doesn't start on a difference of one byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ullage.base.byte_sizes import format_bytes
from ullage.base.errors import ConfigError, PlanError
from ullage.kernels import layout
from ullage.kernels.layout import KVType
from ullage.kernels.weight_formats import WeightType
from ullage.models.layer_groups import LayerGroup, layer_groups
from ullage.models.spec import ModelSpec
from ullage.plan.block_demand import BlockDemand

DEFAULT_KV_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is asked of a deployment."""

    runner: Literal["native", "numpy"]
    weight_type: WeightType
    """Of the native runner; the numpy runner holds float32."""
    kv_type: KVType
    """Of the native runner's keys and values; the numpy runner's are float32."""
    block_size: int
    """Tokens per KV block."""
    max_model_len: int | None
    """Tokens of one request at most; None: what the model was trained for."""
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_memory_bytes: int | None
    """Size of the pool. None: enough for ``max_num_seqs`` requests of ``max_model_len``, but at most 1 GiB or one such
    request, whichever is more."""
    num_threads: int


@dataclass(frozen=True, slots=True)
class Account:
    """One line of the plan."""

    name: str
    num_bytes: int
    formula: str
    """How the figure comes about, filled in."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A deployment that fits. ``accounts`` are in the order of ``plan.ledger.ACCOUNTS``."""

    accounts: tuple[Account, ...]
    available_bytes: int
    """What this process may use in all: the sum of the accounts."""
    max_model_len: int
    num_blocks: int
    block_bytes: int
    demand: BlockDemand
    """How many blocks a request needs."""

    @property
    def block_size(self) -> int:
        """Tokens in a block, each for the layers of one group."""
        return self.demand.block_size

    @property
    def slot_bytes(self) -> int:
        """KV bytes of one token for the layers of one group."""
        return self.block_bytes // self.block_size

    @property
    def token_bytes(self) -> int:
        """KV bytes of one token for all layers."""
        return self.slot_bytes * self.demand.num_groups

    @property
    def capacity_tokens(self) -> int:
        """Tokens that have room at once for all layers. More fit when requests outgrow their windows."""
        return self.num_blocks // self.demand.num_groups * self.block_size

    @property
    def max_request_tokens(self) -> int:
        """What one request can really have: the context, or what the whole pool is enough for where that is less."""
        return self.demand.most_tokens(self.num_blocks, at_most=self.max_model_len)

    @property
    def process_bytes(self) -> int:
        """What the process takes: all accounts but the headroom."""
        return sum(account.num_bytes for account in self.accounts if account.name != "headroom")

    def planned_bytes(self) -> dict[str, int]:
        return {account.name: account.num_bytes for account in self.accounts}


def make_plan(
    spec: ModelSpec,
    stored_types: Mapping[str, str],
    request: PlanRequest,
    *,
    available_bytes: int,
    runtime_bytes: int,
) -> Plan:
    """Works out every account.

    :param stored_types: type in the file by canonical tensor name (``kernels.layout.tensor_types``)
    :param available_bytes: what this process may still take
    :param runtime_bytes: what it holds already
    :raises ConfigError: a setting this model can't honour
    :raises PlanError: more memory than available; the message names a pool that would fit
    """
    max_model_len = _context_of(spec, request)
    if request.runner == "native":
        layout.check_runnable(spec, request.block_size)
    groups = layer_groups(spec)
    demand = _demand(groups, request)
    num_blocks = blocks_asked_for(spec, request)
    planned = planned_memory(spec, stored_types, request, num_blocks)
    formulas = _formulas(spec, stored_types, request, groups, num_blocks)
    accounts = [Account(name, num_bytes, formulas[name]) for name, num_bytes in planned.items()]
    accounts.append(Account("runtime", runtime_bytes, "interpreter, libraries and tokenizer, measured"))
    limit = available_bytes + runtime_bytes
    headroom = limit - sum(account.num_bytes for account in accounts)
    if headroom < 0:
        raise _cannot_hold(spec, stored_types, request, accounts, limit)
    accounts.append(Account("headroom", headroom, f"stays free of the {format_bytes(limit)} this process may use"))
    return Plan(tuple(accounts), limit, max_model_len, num_blocks, planned["kv_pool"] // num_blocks, demand)


def planned_memory(
    spec: ModelSpec, stored_types: Mapping[str, str], request: PlanRequest, num_blocks: int
) -> dict[str, int]:
    """Bytes of each account that the runner allocates, with a pool of so many blocks."""
    sizes = (num_blocks, request.block_size, request.max_num_seqs)
    if request.runner == "numpy":
        return layout.numpy_memory(spec, *sizes)
    return layout.native_memory(
        spec,
        *sizes,
        weight_type=request.weight_type,
        stored_types=stored_types,
        kv_type=request.kv_type,
        max_num_batched_tokens=request.max_num_batched_tokens,
        num_threads=request.num_threads,
    )


def blocks_asked_for(spec: ModelSpec, request: PlanRequest) -> int:
    """:raises ConfigError: a pool too small for any use, or a context beyond the model's"""
    block_bytes = (
        layout.kv_block_bytes(spec, request.block_size, request.kv_type)
        if request.runner == "native"
        else layout.numpy_block_bytes(spec, request.block_size)
    )
    return _num_blocks(request, _demand(layer_groups(spec), request), _context_of(spec, request), block_bytes)


def _demand(groups: tuple[LayerGroup, ...], request: PlanRequest) -> BlockDemand:
    return BlockDemand(request.block_size, tuple(group.window for group in groups), request.max_num_batched_tokens)


def _context_of(spec: ModelSpec, request: PlanRequest) -> int:
    if request.max_model_len is None:
        return spec.max_position
    if request.max_model_len > spec.max_position:
        raise ConfigError(
            f"max_model_len {request.max_model_len} exceeds the {spec.max_position} tokens {spec.name} was trained for",
            hint=f"use at most {spec.max_position}",
        )
    return request.max_model_len


def _num_blocks(request: PlanRequest, demand: BlockDemand, max_model_len: int, block_bytes: int) -> int:
    least = demand.num_groups
    if request.kv_memory_bytes is not None:
        num_blocks = request.kv_memory_bytes // block_bytes
        if num_blocks < least:
            each = f" for each of the {least} groups of layers" if least > 1 else ""
            raise ConfigError(
                f"kv_memory of {request.kv_memory_bytes} bytes is less than one block of {request.block_size} tokens"
                + each,
                hint=f"use at least {least * block_bytes} bytes, or smaller blocks",
            )
        return num_blocks
    blocks_per_request = demand.num_blocks(max_model_len)
    return min(request.max_num_seqs * blocks_per_request, max(blocks_per_request, DEFAULT_KV_BYTES // block_bytes))


def _formulas(
    spec: ModelSpec,
    stored_types: Mapping[str, str],
    request: PlanRequest,
    groups: tuple[LayerGroup, ...],
    num_blocks: int,
) -> dict[str, str]:
    native = request.runner == "native"
    weights = "every tensor in float32"
    head = f"{spec.head_size} x 4 B"
    if native:
        formats = layout.weight_layout(spec, request.weight_type, stored_types).bytes_by_format()
        parts = [f"{format_bytes(num_bytes)} {name}" for name, num_bytes in formats.items()]
        weights = f"matrices: {', '.join(parts)}; norms in float32"
        head = f"{spec.head_size} x 2 B" if request.kv_type == "bf16" else f"({spec.head_size} x 1 B + 4 B)"
    shared = f"; a token counts once for each of {len(groups)} groups of layers" if len(groups) > 1 else ""
    return {
        "weights": weights + ("; the embedding is also the output matrix" if spec.tied_embeddings else ""),
        "kv_pool": f"2 (K, V) x {len(groups[0].layers)} layers x {spec.num_kv_heads} heads"
        f" x {head} x {num_blocks * request.block_size:,} tokens{shared}",
        "workspace": f"one step of {request.max_num_batched_tokens} tokens, {request.num_threads} threads"
        if native
        else "numpy's temporaries are in runtime",
        "logits": f"{request.max_num_seqs} sequences x {spec.vocab_size:,} tokens x 4 B",
    }


_WHAT_TO_LOWER = {
    "weights": "use a smaller model or weight_type int8",
    "workspace": "lower max_num_batched_tokens",
    "logits": "lower max_num_seqs",
    "runtime": "give the process more memory",
}


def _cannot_hold(
    spec: ModelSpec, stored_types: Mapping[str, str], request: PlanRequest, accounts: list[Account], limit: int
) -> PlanError:
    """Says what is missing and, where there are any, the nearest plans that can hold."""
    from ullage.plan.nearest_plans import describe, nearest_plans

    total = sum(account.num_bytes for account in accounts)
    runtime = accounts[-1].num_bytes
    plans = nearest_plans(spec, stored_types, request, limit - runtime)
    largest = max((a for a in accounts if a.name != "kv_pool"), key=lambda account: account.num_bytes)
    return PlanError(
        f"the plan needs {format_bytes(total)} ({total} bytes), "
        f"but this process may use {format_bytes(limit)} ({limit} bytes)",
        hint=describe(plans)
        if plans
        else f"even the smallest pool doesn't fit; {largest.name} takes most, {format_bytes(largest.num_bytes)}: "
        f"{_WHAT_TO_LOWER[largest.name]}",
    )
