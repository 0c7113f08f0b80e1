"""Questions about devices: which ones do, and how few of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ullage.base.errors import UllageError
from ullage.plan.catalogue import device_names, find_device
from ullage.plan.deployment.options import PlanOptions
from ullage.plan.deployment.planned_model import PlannedModel
from ullage.plan.deployment.planner import DeploymentPlan, plan_deployment

COUNTS = (1, 2, 4, 8, 16)
"""Devices that engines share a model among."""


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """A device and the fewest of it that a deployment fits on."""

    plan: DeploymentPlan
    count: int

    @property
    def device(self) -> str:
        assert self.plan.cards is not None
        return self.plan.cards.names[0]

    @property
    def total_memory_bytes(self) -> int:
        assert self.plan.cards is not None
        return sum(self.plan.cards.memory_bytes)


def device_choices(model: PlannedModel, options: PlanOptions) -> tuple[DeviceChoice, ...]:
    """Every device of the catalogue that does, the least memory in all first: what is bought is mostly memory.

    Prices aren't known here; memory stands for them. Beyond 8 devices, pipeline stages of 8.
    """
    found = []
    for name in device_names():
        device = find_device(name)
        if device is None or (device.kind == "cpu") != (options.engine == "ullage"):
            continue
        choice = _fewest(model, replace(options, device=name, memory=None))
        if choice is not None:
            found.append(choice)
    return tuple(sorted(found, key=lambda choice: (choice.total_memory_bytes, choice.count)))


def _fewest(model: PlannedModel, options: PlanOptions) -> DeviceChoice | None:
    for count in COUNTS if options.engine != "ullage" else (1,):
        ranks = replace(options, tensor_parallel=min(count, 8), pipeline_parallel=-(-count // 8))
        try:
            plan = plan_deployment(model, ranks)
        except UllageError:  # heads or layers that so many devices can't share
            continue
        if plan.fits:
            return DeviceChoice(plan, plan.options.num_devices)
    return None
