"""Ullage's own engine: every account to the byte, from the layout that its runners allocate by."""

from __future__ import annotations

from ullage.base.errors import ConfigError
from ullage.kernels import layout
from ullage.kernels.layout import KVType
from ullage.kernels.weight_formats import WEIGHT_TYPES, WeightType
from ullage.models.layer_groups import layer_groups
from ullage.models.spec import ModelSpec
from ullage.plan.block_demand import BlockDemand
from ullage.plan.deployment.engine_request import engine_request
from ullage.plan.deployment.options import PlanOptions
from ullage.plan.deployment.planned_model import PlannedModel
from ullage.plan.deployment.sizing import Sizing, Weights
from ullage.plan.kv_memory import GroupMemory, KVMemory
from ullage.plan.machine import num_cores
from ullage.plan.memory import Account
from ullage.plan.weights.ranks import num_parameters

DEFAULT_BLOCK = 32
MAX_NUM_SEQS = 32
PROCESSES_BYTES = 134 << 20
TOKEN_BYTES = 670
"""Of the service and its engine process: interpreter and libraries, and each token of the two tokenizers. Measured with
vocabularies of 49,152 and 262,144 tokens; a server measures its own when it starts."""


def own_sizing(model: PlannedModel, options: PlanOptions, memory_bytes: int | None) -> Sizing:
    """:raises ConfigError: an option or a size that the native kernels can't honour

    :raises ModelFileError: a model that can't run here
    """
    spec, stored_types = model.runnable()
    block_size = options.block_size or DEFAULT_BLOCK
    kv_type = _kv_type(options)
    layout.check_runnable(spec, block_size)
    weight_type = _weight_type(options)
    request = engine_request(model.architecture, options, memory_bytes)
    step = request.max_num_batched_tokens or 1
    block_bytes = layout.kv_block_bytes(spec, block_size, kv_type)
    demand = BlockDemand(block_size, tuple(group.window for group in layer_groups(spec)), step)
    sequences = max(MAX_NUM_SEQS, options.concurrency or 1)
    planned = layout.native_memory(
        spec,
        0,
        block_size,
        sequences,
        weight_type=weight_type,
        stored_types=stored_types,
        kv_type=kv_type,
        max_num_batched_tokens=step,
        num_threads=num_cores(),
    )
    fixed = (
        Account("workspace", planned["workspace"], f"one step of {step:,} tokens, {num_cores()} threads"),
        Account("logits", planned["logits"], f"{sequences} sequences x {spec.vocab_size:,} tokens x 4 B"),
        Account("runtime", runtime_bytes(spec.vocab_size), "two processes and their tokenizers; measured at the start"),
    )
    context = request.max_model_len or spec.max_position
    weights = planned["weights"]
    return Sizing(
        model.architecture,
        request,
        Weights(num_parameters(model.architecture), weights, weights, weight_type),
        lambda requests, tokens: requests * demand.num_blocks(tokens) * block_bytes,
        fixed,
        0,
        lambda pool: _pool_figures(spec, demand, block_bytes, context, pool),
    )


def runtime_bytes(vocab_size: int) -> int:
    """What a server holds besides what it allocates, by estimate."""
    return PROCESSES_BYTES + TOKEN_BYTES * vocab_size


def _pool_figures(spec: ModelSpec, demand: BlockDemand, block_bytes: int, context: int, pool_bytes: int) -> KVMemory:
    blocks, size, groups = pool_bytes // block_bytes, demand.block_size, layer_groups(spec)
    single = demand.num_groups == 1
    return KVMemory(
        bytes_per_token=block_bytes // size if single else None,
        fixed_bytes_per_request=0 if single else None,
        bytes_per_request=demand.num_blocks(context) * block_bytes,
        groups=tuple(
            GroupMemory(
                "full" if group.window is None else "sliding",
                len(group.layers),
                size,
                block_bytes // len(group.layers),
                group.window,
                BlockDemand(size, (group.window,), demand.max_step_tokens).num_blocks(context),
            )
            for group in groups
        ),
        memory_bytes=pool_bytes,
        num_blocks=blocks,
        capacity_tokens=blocks // demand.num_groups * size,
        max_concurrency=blocks / demand.num_blocks(context),
    )


def _kv_type(options: PlanOptions) -> KVType:
    if options.num_devices > 1:
        raise ConfigError("Ullage's own engine runs on one device", hint="leave the parallel sizes at 1")
    name = options.kv_dtype or "bf16"
    for known in layout.KV_TYPES:
        if name == known:
            return known
    raise ConfigError(
        f"Ullage's own engine doesn't keep keys and values in {name}", hint="it has " + ", ".join(layout.KV_TYPES)
    )


def _weight_type(options: PlanOptions) -> WeightType:
    name = options.weight_type or "file"
    for known in WEIGHT_TYPES:
        if name == known:
            return known
    raise ConfigError(
        f"weight_type is {name!r}, which Ullage's own engine doesn't have",
        hint="it has " + ", ".join(WEIGHT_TYPES),
    )
