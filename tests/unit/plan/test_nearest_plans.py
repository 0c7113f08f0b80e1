from __future__ import annotations

import dataclasses
import math

import pytest
from tests.unit.plan.test_memory import GEMMA, GIB, REQUEST, SMOLLM2, plan_of

from ullage.base.byte_sizes import parse_bytes
from ullage.base.errors import PlanError
from ullage.models.spec import ModelSpec, expected_tensors
from ullage.plan.memory import PlanRequest
from ullage.plan.nearest_plans import NearPlan, nearest_plans

RUNTIME = 100 << 20


def near(spec: ModelSpec, free_bytes: int, **changes: object) -> tuple[NearPlan, ...]:
    request = dataclasses.replace(REQUEST, **changes)
    return nearest_plans(spec, dict.fromkeys(expected_tensors(spec), "F32"), request, free_bytes)


def changed(request: PlanRequest, plan: NearPlan) -> dict[str, object]:
    """What its settings make of a request."""
    values: dict[str, object] = dict(plan.settings)
    if "kv_memory" in values:
        values["kv_memory_bytes"] = parse_bytes(str(values.pop("kv_memory")))
    if "kv_cache_dtype" in values:
        values["kv_type"] = values.pop("kv_cache_dtype")
    if "max_num_batched_tokens" in values:
        values["max_num_batched_tokens"] = int(str(values["max_num_batched_tokens"]))
    return values


@pytest.mark.parametrize("spec", [SMOLLM2, GEMMA], ids=["one group", "windows"])
@pytest.mark.parametrize("kv_memory", [None, 64 << 20, 2 * GIB])
@pytest.mark.parametrize("share", [0.4, 0.7, 0.9, 0.999])
def test_every_plan_named_holds_in_the_memory_that_there_is(spec, kv_memory, share):
    available = round(share * (plan_of(spec, kv_memory_bytes=kv_memory).process_bytes - RUNTIME))
    with pytest.raises(PlanError) as error:
        plan_of(spec, kv_memory_bytes=kv_memory, available=available)
    plans = near(spec, available, kv_memory_bytes=kv_memory)
    assert [plan.distance for plan in plans] == sorted(plan.distance for plan in plans)
    assert plans
    for plan in plans:
        assert plan.flags in error.value.hint
        holds = plan_of(spec, available=available, **{"kv_memory_bytes": kv_memory} | changed(REQUEST, plan))
        assert holds.planned_bytes()["kv_pool"] <= plan.pool_bytes


def test_the_largest_pool_that_fits_is_named_in_whole_mebibytes():
    plan = near(SMOLLM2, GIB, kv_memory_bytes=2 * GIB)[0]
    assert list(plan.settings) == ["kv_memory"]
    assert plan.flags == f"--kv-memory {plan.pool_bytes >> 20}MiB"
    with pytest.raises(PlanError):
        plan_of(kv_memory_bytes=plan.pool_bytes + (2 << 20), available=GIB)


def test_half_the_pool_is_one_doubling_away():
    whole = near(SMOLLM2, 8 * GIB, kv_memory_bytes=2 * GIB)
    assert [(plan.settings, plan.distance) for plan in whole] == [({}, 0.0)]
    rest = plan_of(kv_memory_bytes=2 * GIB).process_bytes - RUNTIME - 2 * GIB
    half = near(SMOLLM2, rest + GIB, kv_memory_bytes=2 * GIB)[0]
    assert math.isclose(half.distance, 1.0, abs_tol=0.01)


def test_lighter_weights_are_named_when_no_pool_is_small_enough():
    hints = [plan.flags for plan in near(SMOLLM2, 200 << 20)]
    assert hints
    assert all(flags.startswith("--weight-type") for flags in hints)


def test_nothing_is_named_when_nothing_holds():
    assert near(SMOLLM2, 10 << 20) == ()


def test_the_numpy_runner_has_only_its_pool_to_make_smaller():
    plans = near(SMOLLM2, GIB, runner="numpy", kv_memory_bytes=2 * GIB)
    assert [list(plan.settings) for plan in plans] == [["kv_memory"]]
