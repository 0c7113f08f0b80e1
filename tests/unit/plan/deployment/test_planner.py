"""The rules by which a pool, a reserve and a verdict come about."""

from __future__ import annotations

import pytest

from ullage.base.errors import ConfigError
from ullage.plan.deployment import PlanOptions, load_model, plan_deployment
from ullage.plan.deployment.alternatives import alternatives
from ullage.plan.deployment.kv_demand import most

GIB = 2**30
LLAMA = load_model("Llama-3.1-8B")


def plan(**options):
    return plan_deployment(LLAMA, PlanOptions(**options))


def test_headroom_is_a_share_of_weights_and_keys_and_values():
    worked_out = plan(memory="80GiB", max_model_len=8192, concurrency=16)
    weights, kv, reserve = worked_out.accounts
    assert kv.num_bytes == 16 * 2 * 32 * 8 * 128 * 8192 * 2
    assert reserve.num_bytes == -(-(weights.num_bytes + kv.num_bytes) // 4)
    assert worked_out.fits


def test_a_utilization_replaces_the_headroom():
    worked_out = plan(memory="24GiB", memory_utilization=0.9, max_model_len=8192)
    step = worked_out.sizing.activation_bytes
    assert worked_out.pool_bytes == int(24 * GIB * 0.9) - worked_out.sizing.weights.bytes_per_rank - step
    assert [account.name for account in worked_out.accounts] == [
        "weights",
        "KV cache",
        "activations",
        "outside the engine",
    ]


def test_a_pool_that_is_given_stands_and_must_fit_beside_the_weights():
    assert plan(memory="23.58GiB", memory_utilization=0.9, kv_memory="3.81GiB", max_model_len=20000).fits
    too_much = plan(memory="23.58GiB", memory_utilization=0.9, kv_memory="9GiB", max_model_len=20000)
    assert "weights" in too_much.reasons[0]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "trtllm", "lmdeploy", "ullage"])
def test_the_largest_answers_fit_and_one_more_does_not(engine):
    worked_out = plan(engine=engine, memory="40GiB", max_model_len=4096, concurrency=4)
    count, context = worked_out.largest_concurrency(), worked_out.largest_context()
    demand, pool = worked_out.sizing.demand, worked_out.pool_bytes
    assert demand(count, 4096) <= pool < demand(count + 1, 4096)
    assert demand(4, context) <= pool < demand(4, context + 32)


def test_copies_share_the_requests():
    one, two = (plan(memory="40GiB", max_model_len=8192, concurrency=8, data_parallel=n) for n in (1, 2))
    assert two.kv_needed_bytes * 2 == one.kv_needed_bytes
    assert two.largest_concurrency() == 2 * one.largest_concurrency()


def test_the_smallest_of_unequal_devices_decides():
    worked_out = plan(memory="24GiB,16GiB", tensor_parallel=2, max_model_len=8192)
    assert worked_out.cards.smallest_bytes == 16 * GIB
    assert "smallest" in worked_out.notes[0]


def test_every_alternative_fits():
    worked_out = plan(memory="24GiB", max_model_len=8192, concurrency=16)
    found = alternatives(worked_out)
    assert len(found) >= 4
    assert [a.distance for a in found] == sorted(a.distance for a in found)
    for alternative in found:
        options = {"memory": "24GiB", "max_model_len": 8192, "concurrency": 16, **alternative.changes}
        if "device" in alternative.changes:
            del options["memory"]
        assert plan(**options).fits, alternative.sentence


def test_a_context_beyond_the_model_has_one_alternative():
    worked_out = plan(memory="80GiB", max_model_len=200_000)
    assert "trained for" in worked_out.reasons[-1]
    (shorter,) = alternatives(worked_out)
    assert shorter.changes == {"max_model_len": 131_072}


def test_experts_can_be_given_out_only_where_there_are_some():
    with pytest.raises(ConfigError, match="no experts"):
        plan(memory="80GiB", expert_parallel=2, tensor_parallel=2)


def test_most_finds_the_largest_that_fits():
    assert most(lambda number: number <= 37, 1000) == 37
    assert most(lambda number: number > 1000, 1000) == 0


@pytest.mark.parametrize("name", ["tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel"])
def test_more_devices_than_there_can_be_are_refused(name):
    with pytest.raises(ConfigError, match="devices are more than any plan has"):
        PlanOptions(**{name: 10**9})
