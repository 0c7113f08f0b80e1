"""What to change when a plan can't hold: the nearest plans that can, each with the settings that ask for it.

Near is counted in doublings: half the pool is one, and so are half the bits of a weight or of a key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ullage.base.byte_sizes import format_bytes
from ullage.kernels.weight_formats import WeightType
from ullage.models.layer_groups import layer_groups
from ullage.models.spec import ModelSpec
from ullage.plan.memory import PlanRequest, blocks_asked_for, planned_memory

LIGHTER_WEIGHTS: tuple[WeightType, ...] = ("int8", "int4")
LEAST_STEP_TOKENS = 64
WHOLE = 1 << 20
"""Pools are named in whole MiB where they have so many."""


@dataclass(frozen=True, slots=True)
class NearPlan:
    """A plan that holds.

    :ivar settings: of ``EngineOptions``, by name: what must change
    :ivar pool_bytes: keys and values that it has room for
    :ivar distance: in doublings
    """

    settings: Mapping[str, str]
    pool_bytes: int
    distance: float

    @property
    def flags(self) -> str:
        """For the command line."""
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.settings.items())


def nearest_plans(
    spec: ModelSpec, stored_types: Mapping[str, str], request: PlanRequest, free_bytes: int, at_most: int = 3
) -> tuple[NearPlan, ...]:
    """The nearest first, and none that only adds a change to a nearer one.

    :param free_bytes: what the accounts of runners may take
    """
    wanted = blocks_asked_for(spec, request)
    found: list[NearPlan] = []
    for settings, changed, distance in _lighter(spec, stored_types, request):
        memory = planned_memory(spec, stored_types, changed, 0)
        block_bytes = planned_memory(spec, stored_types, changed, 1)["kv_pool"]
        least, most = len(layer_groups(spec)), (free_bytes - sum(memory.values())) // block_bytes
        asked = blocks_asked_for(spec, changed)
        if most >= asked:
            found.append(NearPlan(settings, asked * block_bytes, distance))
        elif (num_blocks := min(most, wanted)) >= least:
            pool, named = _named_pool(num_blocks * block_bytes)
            if pool // block_bytes >= least:
                found.append(
                    NearPlan({**settings, "kv_memory": named}, pool, distance + math.log2(wanted / num_blocks))
                )
    found.sort(key=lambda plan: plan.distance)
    kept: list[NearPlan] = []
    for plan in found:
        if not any(nearer.settings.keys() <= plan.settings.keys() for nearer in kept):
            kept.append(plan)
    return tuple(kept[:at_most])


def describe(plans: tuple[NearPlan, ...]) -> str:
    """A hint, in one line."""
    return "it would hold with " + ", or with ".join(
        f"{plan.flags} (a pool of {format_bytes(plan.pool_bytes)})" for plan in plans
    )


def _lighter(
    spec: ModelSpec, stored_types: Mapping[str, str], request: PlanRequest
) -> Iterator[tuple[dict[str, str], PlanRequest, float]]:
    """The request itself and those with smaller accounts: (settings, request, distance)."""
    yield {}, request, 0.0
    if request.runner != "native":
        return
    steps = request.max_num_batched_tokens
    while steps // 2 >= max(request.max_num_seqs, LEAST_STEP_TOKENS):
        steps //= 2
    if steps < request.max_num_batched_tokens:
        smaller = replace(request, max_num_batched_tokens=steps)
        distance = math.log2(request.max_num_batched_tokens / steps)
        yield {"max_num_batched_tokens": str(steps)}, smaller, distance
    with_int8: list[tuple[dict[str, str], PlanRequest, float]] = [({}, request, 0.0)]
    if request.kv_type == "bf16":
        with_int8.append(({"kv_cache_dtype": "int8"}, replace(request, kv_type="int8"), 1.0))
        yield with_int8[-1]
    before = planned_memory(spec, stored_types, request, 0)["weights"]
    for weight_type in LIGHTER_WEIGHTS:
        for settings, changed, distance in with_int8:
            lighter = replace(changed, weight_type=weight_type)
            after = planned_memory(spec, stored_types, lighter, 0)["weights"]
            if after < before:
                yield {"weight_type": weight_type, **settings}, lighter, distance + math.log2(before / after)


def _named_pool(num_bytes: int) -> tuple[int, str]:
    """A size no larger, and how a setting says it."""
    if num_bytes >= WHOLE:
        return num_bytes // WHOLE * WHOLE, f"{num_bytes // WHOLE}MiB"
    return num_bytes, str(num_bytes)
