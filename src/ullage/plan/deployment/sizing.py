"""What one rank needs, whatever it is put on: weights, keys and values by demand, and what a step takes besides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from ullage.base.errors import ConfigError
from ullage.plan.architecture import Architecture
from ullage.plan.as_engine import ENGINES
from ullage.plan.deployment.activations import activation_bytes, experts_per_token
from ullage.plan.deployment.engine_request import PLAIN_OF_GGML, engine_request, with_weight_type
from ullage.plan.deployment.kv_demand import KVDemand, kv_demand, most
from ullage.plan.deployment.options import PlanOptions
from ullage.plan.deployment.planned_model import PlannedModel
from ullage.plan.engines.request import EngineRequest
from ullage.plan.kv_memory import KVMemory, kv_memory
from ullage.plan.memory import Account
from ullage.plan.number_types import item_bytes
from ullage.plan.weights.formats import ggml_type
from ullage.plan.weights.ranks import Parallelism, num_parameters, weight_bytes, weight_bytes_per_rank

MANY_REQUESTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of a model, in bytes.

    :ivar parameters: those that are counted
    :ivar num_bytes: of all of them once
    :ivar bytes_per_rank: on the rank that holds most, with the engine's tables
    :ivar type_name: for people
    """

    parameters: int
    num_bytes: int
    bytes_per_rank: int
    type_name: str


@dataclass(frozen=True, slots=True)
class Sizing:
    """One rank of one engine.

    :ivar architecture: with the types that were asked for
    :ivar fixed: accounts that are known to the byte beside weights and pool (Ullage's own)
    :ivar activation_bytes: of a step, estimated; 0 where ``fixed`` has them
    :ivar pool_figures: what a pool of so many bytes holds, for a context
    """

    architecture: Architecture
    request: EngineRequest
    weights: Weights
    demand: KVDemand
    fixed: tuple[Account, ...]
    activation_bytes: int
    pool_figures: Callable[[int], KVMemory]
    notes: tuple[str, ...] = ()

    @property
    def fixed_bytes(self) -> int:
        return sum(account.num_bytes for account in self.fixed)


def sizing_of(model: PlannedModel, options: PlanOptions, memory_bytes: int | None) -> Sizing:
    """:param memory_bytes: of the smallest device; engines choose defaults by it

    :raises ConfigError: what this engine or model can't do, or a kind of cache without known rules
    :raises ModelFileError: a model that Ullage's own engine can't run
    """
    check_expert_parallel(model.architecture, options)
    if options.engine == "ullage":
        from ullage.plan.deployment.own_engine import own_sizing

        return own_sizing(model, options, memory_bytes)
    architecture, weights = _weights(model, options)
    request = engine_request(architecture, options, memory_bytes)
    demand = kv_demand(architecture, request)
    tokens = request.n_ubatch if options.engine == "llamacpp" else request.max_num_batched_tokens or 1
    step = activation_bytes(architecture, tokens, _ranks(options), experts_per_token(model.config))
    notes = tuple(f"weights of {name} aren't derived from the configuration" for name in architecture.uncounted)
    return Sizing(
        architecture,
        request,
        weights,
        demand,
        (),
        step,
        lambda pool: _pool_figures(architecture, request, demand, pool),
        () if model.stored_bytes is not None else notes,
    )


def check_expert_parallel(architecture: Architecture, options: PlanOptions) -> None:
    """:raises ConfigError: experts can't be given out like that"""
    if options.expert_parallel == 1:
        return
    if not any(weight.expert for layer in architecture.layers for weight in layer.weights):
        raise ConfigError("expert_parallel is set, but this model has no experts")
    if options.tensor_parallel * options.data_parallel % options.expert_parallel:
        raise ConfigError(
            f"expert_parallel {options.expert_parallel} doesn't divide the "
            f"{options.tensor_parallel * options.data_parallel} devices of tensor and data parallelism"
        )


def _ranks(options: PlanOptions) -> Parallelism:
    return Parallelism(options.tensor_parallel, options.pipeline_parallel, options.expert_parallel)


def _weights(model: PlannedModel, options: PlanOptions) -> tuple[Architecture, Weights]:
    key = (options.engine, options.weight_type, _ranks(options), options.prediction_layers > 0)
    if key not in model.weights:
        model.weights[key] = _work_out_weights(model, options)
    return cast(tuple[Architecture, Weights], model.weights[key])


def _work_out_weights(model: PlannedModel, options: PlanOptions) -> tuple[Architecture, Weights]:
    architecture, stored, name = model.architecture, model.stored_bytes, options.weight_type
    with_prediction = options.prediction_layers > 0
    parameters = num_parameters(architecture, with_prediction=with_prediction)
    if name is not None and options.engine == "llamacpp" and name not in PLAIN_OF_GGML:
        total = weight_bytes(architecture, ggml=ggml_type(name), with_prediction=with_prediction)
        return architecture, Weights(parameters, total, -(-total // options.num_devices_per_copy), name)
    if name is not None:
        architecture, stored = with_weight_type(architecture, name), None
    derived = weight_bytes(architecture, with_prediction=with_prediction)
    total = derived if stored is None else stored
    if options.engine == "llamacpp":
        per_rank = -(-total // options.num_devices_per_copy)
    else:
        per_rank = weight_bytes_per_rank(architecture, _ranks(options), with_prediction=with_prediction)
        per_rank = per_rank if stored is None else -(-per_rank * stored // derived)
    if options.engine in (None, "vllm"):  # keeps a table of rotary positions beside its weights
        item = item_bytes(architecture.dtype, field="dtype")
        per_rank += architecture.max_positions * architecture.rotary_dim * item
    return architecture, Weights(parameters, total, per_rank, _type_name(architecture, name, model.is_gguf))


def _type_name(architecture: Architecture, asked: str | None, is_gguf: bool) -> str:
    if asked is not None:
        return asked
    if is_gguf:
        return "types by tensor"
    method = (architecture.quantisation or {}).get("quant_method")
    return f"{method} and {architecture.dtype}" if method else architecture.dtype


def _pool_figures(architecture: Architecture, request: EngineRequest, demand: KVDemand, pool_bytes: int) -> KVMemory:
    """What the engine would say of a pool of ``pool_bytes``; engines that are told a number of tokens get the most."""
    context = request.max_model_len or 1
    if request.engine_name == "vllm":
        return kv_memory(architecture, replace(request, kv_memory_bytes=pool_bytes))
    requests = most(lambda count: demand(count, context) <= pool_bytes, MANY_REQUESTS)
    tokens = most(lambda count: demand(1, count) <= pool_bytes, 2**40)
    slots = max(1, requests)
    asked = replace(
        request,
        kv_memory_bytes=None,
        n_ctx=slots * context,
        n_seq_max=slots,
        max_total_tokens=max(1, tokens),
        mamba_slots=slots,
        capacity_tokens=max(1, tokens),
    )
    figures = ENGINES[request.engine_name](architecture, asked).figures
    known = kv_memory(architecture, replace(asked, capacity_tokens=None))
    blocks = figures.get("num_gpu_blocks")
    return replace(
        known,
        bytes_per_request=demand(1, context),
        memory_bytes=pool_bytes,
        num_blocks=None if blocks is None else int(blocks),
        capacity_tokens=requests * context if request.engine_name == "llamacpp" else tokens,
        max_concurrency=float(requests),
    )
