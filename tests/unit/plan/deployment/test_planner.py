"""The rules by which a pool, a reserve and a verdict come about."""

from __future__ import annotations

from importlib import resources

import pytest

from ullage.base.errors import ConfigError
from ullage.plan.deployment import PlanOptions, load_model, plan_deployment
from ullage.plan.deployment.alternatives import alternatives
from ullage.plan.deployment.kv_demand import most
from ullage.plan.deployment.roofline import OWN_SHARES, estimate_speed
from ullage.plan.reports.documents import speed_sentence
from ullage.plan.reports.engine_settings import ready_settings

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
    assert worked_out.cards.rank_bytes == 16 * GIB
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


def test_unequal_cards_are_filled_alike_by_llamacpp_and_to_the_smallest_by_others():
    options = {"memory": "16GiB,8GiB", "tensor_parallel": 2, "max_model_len": 8192}
    split = plan_deployment(load_model("Llama-3.1-8B"), PlanOptions(engine="llamacpp", **options))
    even = plan_deployment(load_model("Llama-3.1-8B"), PlanOptions(engine="vllm", **options))
    assert (split.cards.rank_bytes, even.cards.rank_bytes) == (12 << 30, 8 << 30)
    assert split.fits
    assert not even.fits
    assert "--tensor-split 16,8" in ready_settings(split)
    assert any("--tensor-split 16,8" in note for note in split.notes)
    assert any("smallest device decides" in note for note in even.notes)


def test_equal_cards_need_no_split():
    options = PlanOptions(engine="llamacpp", memory="16GiB", tensor_parallel=2, max_model_len=8192)
    assert "--tensor-split" not in ready_settings(plan_deployment(load_model("Llama-3.1-8B"), options))


def test_measuring_gives_this_machine_a_speed(monkeypatch):
    monkeypatch.setattr("ullage.plan.deployment.cards._measured", lambda: (40e9, {"bf16": 0.5e12}))
    shape = str(resources.files("ullage.ops.bench") / "shapes" / "qwen2.5-0.5b.json")
    plan = plan_deployment(load_model(shape), PlanOptions(engine="ullage", measure=True, max_model_len=1024))
    speed = estimate_speed(plan)
    best = (plan.sizing.weights.bytes_per_rank + plan.kv_needed_bytes) / 40e9
    assert speed.best_inter_token_seconds == pytest.approx(best)
    assert speed.inter_token_seconds == pytest.approx(best / OWN_SHARES[0])
    assert "within" in speed_sentence(speed)


@pytest.mark.parametrize("options", [{}, {"engine": "vllm"}, {"engine": "ullage", "memory": "8GiB"}])
def test_only_this_machine_can_be_measured(options):
    with pytest.raises(ConfigError, match="measure looks at this machine"):
        PlanOptions(measure=True, **options)
