"""What to change when a deployment doesn't fit: the changes that would do, the nearest first.

Near is counted in doublings: half the context is one, as is half the bits of a value, as are twice the devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ullage.base.errors import UllageError
from ullage.plan.catalogue import device_names, find_device
from ullage.plan.deployment.planner import DeploymentPlan, plan_deployment

WEIGHT_TYPES: dict[str, tuple[str, ...]] = {
    "vllm": ("fp8", "awq"),
    "sglang": ("fp8", "awq"),
    "trtllm": ("fp8", "awq"),
    "lmdeploy": ("awq",),
    "llamacpp": ("q8_0", "q6_k", "q4_k"),
    "ullage": ("int8",),
}
KV_TYPES: dict[str, tuple[str, ...]] = {
    "vllm": ("fp8",),
    "sglang": ("fp8",),
    "trtllm": ("fp8",),
    "lmdeploy": ("int8", "int4"),
    "llamacpp": ("q8_0", "q4_0"),
    "ullage": ("int8",),
}
MOST_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Alternative:
    """Changes that make a deployment fit.

    :ivar changes: options by name, with their new values
    :ivar distance: in doublings
    """

    changes: dict[str, object]
    sentence: str
    distance: float


def alternatives(plan: DeploymentPlan, at_most: int = 6) -> tuple[Alternative, ...]:
    """The nearest deployments that fit, nearest first; none where this one fits."""
    if plan.fits:
        return ()
    found = list(_smaller_work(plan))
    if plan.context <= plan.sizing.architecture.max_positions:  # a longer context is not a matter of memory
        found += [*_single_changes(plan), *_double_changes(plan)]
    return tuple(sorted(found, key=lambda alternative: alternative.distance)[:at_most])


def _smaller_work(plan: DeploymentPlan) -> Iterator[Alternative]:
    """What fits by the pool that there is, so nothing need be tried."""
    context, count = plan.largest_context(), plan.largest_concurrency()
    if 0 < context < plan.context:
        sentence = f"a context of {context:,} tokens instead of {plan.context:,}"
        yield Alternative({"max_model_len": context}, sentence, math.log2(plan.context / context))
    if 0 < count < plan.concurrency and plan.context <= plan.sizing.architecture.max_positions:
        sentence = f"{count:,} requests at once instead of {plan.concurrency:,}"
        yield Alternative({"concurrency": count}, sentence, math.log2(plan.concurrency / count))


def _single_changes(plan: DeploymentPlan) -> Iterator[Alternative]:
    yield from _other_types(plan, "kv_dtype", KV_TYPES, "keys and values in {}")
    yield from _other_types(plan, "weight_type", WEIGHT_TYPES, "weights in {}")
    yield from _more_devices(plan)
    yield from _larger_device(plan)


def _double_changes(plan: DeploymentPlan) -> Iterator[Alternative]:
    """Smaller weights together with more devices or less work, where no single change is enough."""
    if plan.options.weight_type is not None:
        return
    before = plan.sizing.weights.bytes_per_rank
    for name in WEIGHT_TYPES[plan.options.engine or "vllm"]:
        lighter = _try(plan, {"weight_type": name})
        if lighter is None or lighter.fits or lighter.sizing.weights.bytes_per_rank >= before:
            continue
        nearer = math.log2(before / lighter.sizing.weights.bytes_per_rank)
        types = _other_types(lighter, "kv_dtype", KV_TYPES, "keys and values in {}")
        for second in (*_smaller_work(lighter), *types, *_more_devices(lighter)):
            changes = {"weight_type": name, **second.changes}
            sentence = f"weights in {name}, and {second.sentence}"
            yield Alternative(changes, sentence, nearer + second.distance)


def _other_types(
    plan: DeploymentPlan, option: str, types: dict[str, tuple[str, ...]], sentence: str
) -> Iterator[Alternative]:
    if getattr(plan.options, option) is not None:
        return  # a type that was asked for stays
    before = _bytes_of(plan, option)
    for name in types[plan.options.engine or "vllm"]:
        changed = _try(plan, {option: name})
        if changed is None or _bytes_of(changed, option) >= before:
            continue
        distance = math.log2(before / max(1, _bytes_of(changed, option)))
        if changed.fits:
            yield Alternative({option: name}, sentence.format(name), distance)


def _bytes_of(plan: DeploymentPlan, option: str) -> int:
    return plan.kv_needed_bytes if option == "kv_dtype" else plan.sizing.weights.bytes_per_rank


def _more_devices(plan: DeploymentPlan) -> Iterator[Alternative]:
    """The fewest devices over which the layers can be cut, each like the smallest that there is."""
    if plan.cards is None or plan.options.engine == "ullage":
        return
    ranks = plan.options.tensor_parallel * 2
    while ranks * plan.options.pipeline_parallel * plan.options.data_parallel <= MOST_DEVICES:
        changed = _try(plan, {"tensor_parallel": ranks})
        if changed is not None and changed.fits:
            count = changed.options.num_devices
            sentence = f"tensor parallelism over {ranks} devices" + (f", {count} in all" if count > ranks else "")
            distance = math.log2(count / plan.options.num_devices)
            yield Alternative({"tensor_parallel": ranks}, sentence, distance)
            return
        ranks *= 2


def _larger_device(plan: DeploymentPlan) -> Iterator[Alternative]:
    """The smallest device of the catalogue that does."""
    if plan.cards is None or plan.options.engine == "ullage":
        return
    memory, needed = plan.cards.rank_bytes, plan.sizing.weights.bytes_per_rank + plan.kv_needed_bytes
    devices = [device for name in device_names() if (device := find_device(name)) is not None]
    enough = {d.memory_bytes: d for d in reversed(devices) if d.memory_bytes > max(memory, needed) and d.kind != "cpu"}
    for size, device in sorted(enough.items()):
        changed = _try(plan, {"device": device.name, "memory": None})
        if changed is not None and changed.fits:
            yield Alternative({"device": device.name}, f"a larger device: {device.name}", math.log2(size / memory))
            return


def _try(plan: DeploymentPlan, changes: dict[str, object]) -> DeploymentPlan | None:
    """The deployment with these changes; None: this engine or model can't have them."""
    values: dict[str, Any] = {**_devices(plan), **changes}
    try:
        return plan_deployment(plan.model, replace(plan.options, **values))
    except UllageError:
        return None


def _devices(plan: DeploymentPlan) -> dict[str, object]:
    """Devices stand as one size for all, so that their number can change; detected ones stay what they were."""
    if plan.cards is None:
        return {}
    if plan.options.device is not None and len(set(plan.cards.memory_bytes)) == 1:
        return {"device": plan.cards.names[0]}
    return {"device": None, "memory": str(plan.cards.rank_bytes)}
