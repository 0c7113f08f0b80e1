"""The plan of a deployment: every account of one device with its formula, and whether the work fits.

weights                       parameters x bytes each
KV cache                      requests at once x (2 x layers x KV heads x head size x tokens x bytes)
activations, fragmentation    25 % of both, or what the engine's own rule leaves
------------------------------------------------------------------------------- <= memory of the device
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ullage.base.byte_sizes import format_bytes
from ullage.base.errors import ConfigError
from ullage.plan.deployment.cards import Cards, cards_of
from ullage.plan.deployment.formulas import kv_formulas, weights_formula
from ullage.plan.deployment.kv_demand import most
from ullage.plan.deployment.options import DEFAULT_HEADROOM, PlanOptions
from ullage.plan.deployment.planned_model import PlannedModel
from ullage.plan.deployment.planned_work import PlannedWork, work_of
from ullage.plan.deployment.sizing import MANY_REQUESTS, Sizing, sizing_of
from ullage.plan.kv_memory import KVMemory
from ullage.plan.memory import Account


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """One deployment, worked out. Bytes are those of one device, the fullest.

    :ivar options: as asked, with the engine filled in
    :ivar cards: None: unknown; then only the pool is checked
    :ivar concurrency: requests at once, over all copies
    :ivar kv_needed_bytes: keys and values of the requests that were asked for
    :ivar pool_bytes: what the rule leaves for keys and values; None: the device isn't known
    :ivar accounts: what the deployment takes of a device, in order
    :ivar kv_formulas: keys and values of one request, a line for each kind of layer
    :ivar reasons: why it doesn't fit; empty: it does
    :ivar work: what follows from lengths and arrivals of requests; None: one context and a number are given
    """

    model: PlannedModel
    options: PlanOptions
    cards: Cards | None
    sizing: Sizing
    context: int
    concurrency: int
    kv_needed_bytes: int
    pool_bytes: int | None
    accounts: tuple[Account, ...]
    kv_formulas: tuple[str, ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    work: PlannedWork | None = None

    @property
    def fits(self) -> bool:
        return not self.reasons

    def kv(self) -> KVMemory:
        """What the pool holds, as the engine would say; without a device, a pool for the requests alone."""
        return self.sizing.pool_figures(max(0, self.kv_needed_bytes if self.pool_bytes is None else self.pool_bytes))

    @property
    def total_bytes(self) -> int:
        return sum(account.num_bytes for account in self.accounts)

    @property
    def requests_per_copy(self) -> int:
        return -(-self.concurrency // self.options.data_parallel)

    def largest_concurrency(self, context: int | None = None) -> int:
        """Most requests of ``context`` tokens (those of the plan) at once, over all copies; 0: not one."""
        pool, length = self.pool_bytes or 0, context or self.context
        return self.options.data_parallel * most(lambda count: self.sizing.demand(count, length) <= pool, MANY_REQUESTS)

    def largest_context(self, concurrency: int | None = None) -> int:
        """Most tokens of each of ``concurrency`` requests (those of the plan), up to the model's; 0: not one."""
        pool = self.pool_bytes or 0
        count = self.requests_per_copy if concurrency is None else -(-concurrency // self.options.data_parallel)
        longest = self.sizing.architecture.max_positions
        return most(lambda tokens: self.sizing.demand(count, tokens) <= pool, longest)


def plan_deployment(model: PlannedModel, options: PlanOptions | None = None) -> DeploymentPlan:
    """Works out one deployment. Loads no weights.

    :raises ConfigError: an option that this model, engine or device can't honour
    :raises ModelFileError: a model that Ullage's own engine can't run, where that engine is asked for
    """
    options = _with_engine(model, options or PlanOptions())
    cards = cards_of(options)
    memory = None if cards is None else cards.rank_bytes
    sizing = sizing_of(model, options, memory)
    work = work_of(model, sizing, options, cards)
    context = work.context if work else options.max_model_len or sizing.architecture.max_positions
    concurrency = work.concurrency if work else options.concurrency or 1
    per_copy = -(-concurrency // options.data_parallel)
    pool = _pool_bytes(sizing, options, memory)
    needed = work.needed_bytes if work else sizing.demand(per_copy, context)
    reasons = _reasons(sizing, options, memory, pool, needed, per_copy, context)
    if work is not None:
        reasons += work.reasons
    return DeploymentPlan(
        model,
        options,
        cards,
        sizing,
        context,
        concurrency,
        needed,
        pool,
        _accounts(sizing, options, memory, pool, needed, per_copy),
        kv_formulas(sizing, context),
        reasons,
        (*sizing.notes, *_notes(sizing, options, cards)),
        work,
    )


def _with_engine(model: PlannedModel, options: PlanOptions) -> PlanOptions:
    return options if options.engine else replace(options, engine="llamacpp" if model.is_gguf else "vllm")


def headroom_of(options: PlanOptions) -> float:
    """The share on top of weights and pool; Ullage's accounts are exact and need none."""
    if options.headroom is not None:
        return options.headroom
    return 0.0 if options.engine == "ullage" else DEFAULT_HEADROOM


def _pool_bytes(sizing: Sizing, options: PlanOptions, memory: int | None) -> int | None:
    """Bytes for keys and values by the rule that applies; below 0: not even the weights have room."""
    given = options.kv_memory_bytes()
    if given is not None or memory is None:
        return given
    taken = sizing.weights.bytes_per_rank + sizing.fixed_bytes
    if options.memory_utilization is not None:
        return math.floor(memory * options.memory_utilization) - taken - sizing.activation_bytes
    usable = min(math.floor(memory / (1 + headroom_of(options))), memory - sizing.activation_bytes)
    return usable - taken


def _accounts(
    sizing: Sizing, options: PlanOptions, memory: int | None, pool: int | None, needed: int, requests: int
) -> tuple[Account, ...]:
    weights = Account("weights", sizing.weights.bytes_per_rank, weights_formula(sizing, options))
    each = format_bytes(-(-needed // requests))  # on average, where requests are of many lengths
    kv = Account("KV cache", needed, f"{requests:,} {'request' if requests == 1 else 'requests'} at once x {each}")
    if options.kv_memory is not None and pool is not None:
        kv = Account("KV cache", pool, f"a pool of this size is given; the requests need {format_bytes(needed)} of it")
    reserve = _reserve(sizing, options, memory, weights.num_bytes + kv.num_bytes + sizing.fixed_bytes)
    return (weights, kv, *sizing.fixed, *reserve)


def _reserve(sizing: Sizing, options: PlanOptions, memory: int | None, taken: int) -> tuple[Account, ...]:
    step = sizing.activation_bytes
    estimate = f"a step of {sizing.request.max_num_batched_tokens or 1:,} tokens takes about {format_bytes(step)}"
    if options.memory_utilization is not None and memory is not None:
        outside = Account(
            "outside the engine",
            memory - math.floor(memory * options.memory_utilization),
            f"{1 - options.memory_utilization:.0%} of the device, by memory_utilization {options.memory_utilization:g}",
        )
        if options.kv_memory is not None:  # the pool was measured with its activations: they are in what is left
            return (outside,)
        return (Account("activations", step, f"estimated: {estimate}"), outside)
    if options.kv_memory is not None:
        return ()
    share = headroom_of(options)
    if not share and not step:
        return ()
    by_share = math.ceil(taken * share)
    if by_share >= step:
        formula = f"{share:.0%} of the above; {estimate}" if step else f"{share:.0%} of the above"
        return (Account("activations, fragmentation", by_share, formula),)
    return (Account("activations, fragmentation", step, f"{estimate}, more than {share:.0%} of the above"),)


def _reasons(
    sizing: Sizing,
    options: PlanOptions,
    memory: int | None,
    pool: int | None,
    needed: int,
    requests: int,
    context: int,
) -> tuple[str, ...]:
    weights = sizing.weights.bytes_per_rank
    reasons = []
    if memory is not None and options.kv_memory is not None and pool is not None:
        limit = math.floor(memory * (options.memory_utilization or 1))
        if weights + pool + sizing.fixed_bytes > limit:
            reasons.append(
                f"weights ({format_bytes(weights)}) and the pool ({format_bytes(pool)}) need "
                f"{format_bytes(weights + pool + sizing.fixed_bytes)}, the device gives {format_bytes(limit)}"
            )
    if pool is not None and pool < 0:
        left = max(0, pool + weights)
        reasons.append(f"weights alone need {format_bytes(weights)}, the device leaves {format_bytes(left)} for them")
    elif pool is not None and needed > pool:
        who = "one request" if requests == 1 else f"{requests:,} requests"
        reasons.append(
            f"keys and values of {who} of {context:,} tokens need {format_bytes(needed)}, "
            f"and {format_bytes(pool)} is there for them"
        )
    longest = sizing.architecture.max_positions
    if context > longest:
        reasons.append(f"a context of {context:,} tokens exceeds the {longest:,} that the model was trained for")
    return tuple(reasons)


def _notes(sizing: Sizing, options: PlanOptions, cards: Cards | None) -> list[str]:
    notes = []
    if cards is not None and cards.tensor_split is not None:
        notes.append(
            f"layers are given out by memory (--tensor-split {cards.tensor_split}), whole: a card may have one "
            "more than its share"
        )
    elif cards is not None and len(set(cards.memory_bytes)) > 1:
        notes.append(
            f"every rank has the same share, so the smallest device decides: {format_bytes(min(cards.memory_bytes))}"
        )
    heads = sizing.architecture.num_heads
    if heads % options.tensor_parallel and options.engine != "llamacpp":
        raise ConfigError(f"tensor_parallel {options.tensor_parallel} doesn't divide the {heads} attention heads")
    return notes
