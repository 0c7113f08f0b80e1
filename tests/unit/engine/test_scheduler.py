from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from ullage.base.errors import ConfigError
from ullage.engine.kv_cache import KVCacheConfig, KVCacheManager
from ullage.engine.request import Request, TokenOutput
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.scheduler import MAX_TIMES_PASSED, Scheduler, SchedulerConfig
from ullage.engine.step import SampledToken, ScheduledStep
from ullage.plan.block_demand import BlockDemand
from ullage.plan.ledger import MemoryLedger


def make_scheduler(
    num_blocks: int = 100,
    *,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 20,
    max_preemptions: int = 3,
    clock: Callable[[], float] = lambda: 0.0,
) -> Scheduler:
    kv_config = KVCacheConfig(num_blocks, BlockDemand(4), slot_bytes=1)
    kv_cache = KVCacheManager(kv_config, MemoryLedger({"kv_pool": num_blocks * 4}))
    config = SchedulerConfig(1000, max_num_seqs, max_num_batched_tokens, max_preemptions=max_preemptions)
    return Scheduler(config, kv_cache, clock)


def add(
    scheduler: Scheduler,
    request_id: int,
    num_tokens: int,
    *,
    tenant: str = "",
    priority: int = 0,
    arrived_at: float = 0.0,
    deadline: float = math.inf,
    **sampling: object,
) -> Request:
    token_ids = [1000 * request_id + i for i in range(num_tokens)]  # no common beginnings
    params = SamplingParams(**{"max_tokens": 100, **sampling})
    request = Request(request_id, token_ids, num_tokens, params, seed=0)
    request.tenant, request.priority = tenant, priority
    request.arrived_at, request.deadline = arrived_at, deadline
    scheduler.add(request)
    return request


def answer(scheduler: Scheduler, step: ScheduledStep, token_id: int = 7) -> list[TokenOutput]:
    return scheduler.update(step, [SampledToken(r.request_id, token_id) for r in step.requests if r.needs_logits])


def shape(step: ScheduledStep) -> list[tuple[int, int, int]]:
    """(request, position of its first token, number of its tokens)"""
    return [(request.request_id, request.num_computed_tokens, len(request.token_ids)) for request in step.requests]


def run_step(scheduler: Scheduler) -> list[tuple[int, int, int]]:
    step = scheduler.schedule()
    answer(scheduler, step)
    return shape(step)


def test_a_prompt_runs_at_once_and_then_a_token_a_step():
    scheduler = make_scheduler()
    request = add(scheduler, 0, 10)
    step = scheduler.schedule()
    (scheduled,) = step.requests
    assert scheduled.token_ids == list(range(10))
    assert scheduled.needs_logits
    assert [len(table) for table in scheduled.block_tables] == [3]
    (output,) = answer(scheduler, step, token_id=42)
    assert (output.token_id, output.num_prompt_tokens, output.num_output_tokens) == (42, 10, 1)
    (scheduled,) = scheduler.schedule().requests
    assert (scheduled.token_ids, scheduled.num_computed_tokens, scheduled.num_prompt_tokens) == ([42], 10, 10)
    assert scheduled.history == request.token_ids == [*range(10), 42]


def test_a_long_prompt_runs_in_chunks_and_needs_logits_only_for_the_last():
    scheduler = make_scheduler()
    add(scheduler, 0, 45)
    steps = []
    for _ in range(3):
        step = scheduler.schedule()
        steps.append((shape(step), [request.needs_logits for request in step.requests]))
        answer(scheduler, step)
    assert steps == [([(0, 0, 20)], [False]), ([(0, 20, 20)], [False]), ([(0, 40, 5)], [True])]


def test_running_requests_never_stand_still_beside_a_long_prompt():
    scheduler = make_scheduler()
    add(scheduler, 0, 4)
    run_step(scheduler)
    add(scheduler, 1, 100)
    assert run_step(scheduler) == [(0, 4, 1), (1, 0, 19)]
    assert run_step(scheduler) == [(0, 5, 1), (1, 19, 19)]


def test_a_short_prompt_gets_past_a_long_one():
    scheduler = make_scheduler()
    add(scheduler, 0, 100)
    add(scheduler, 1, 5)
    assert run_step(scheduler) == [(0, 0, 15), (1, 0, 5)]
    assert run_step(scheduler) == [(0, 15, 19), (1, 5, 1)]  # nobody else waits: the long one has the rest


def test_three_long_prompts_share_a_step_and_leave_nothing_of_it():
    scheduler = make_scheduler()
    for request_id in range(3):
        add(scheduler, request_id, 100, max_tokens=10)
    assert run_step(scheduler) == [(0, 0, 10), (1, 0, 5), (2, 0, 5)]


@pytest.mark.parametrize("num_waiting", [1, 2])
def test_a_long_prompt_runs_at_full_speed_beside_those_that_can_not_be_admitted(num_waiting):
    scheduler = make_scheduler(num_blocks=30)
    for request_id in range(1 + num_waiting):
        add(scheduler, request_id, 100, max_tokens=10)
    assert [run_step(scheduler) for _ in range(5)] == [[(0, start, 20)] for start in range(0, 100, 20)]


def test_no_more_than_max_num_seqs_run_first_come_first_served():
    scheduler = make_scheduler(max_num_seqs=2)
    for request_id in range(4):
        add(scheduler, request_id, 2, max_tokens=2)
    assert [r for r, *_ in run_step(scheduler)] == [0, 1]
    assert [r for r, *_ in run_step(scheduler)] == [0, 1]
    assert [r for r, *_ in run_step(scheduler)] == [2, 3]


def test_the_newest_is_preempted_and_keeps_its_output():
    scheduler = make_scheduler(num_blocks=5)
    old, new = (add(scheduler, request_id, 7, max_tokens=2) for request_id in range(2))  # two blocks each, so it seems
    for request in (old, new):
        request.sampling = SamplingParams(max_tokens=10)
        request.num_expected_tokens = 8
    assert run_step(scheduler) == [(0, 0, 7), (1, 0, 7)]
    assert run_step(scheduler) == [(0, 7, 1), (1, 7, 1)]
    assert new.block_tables  # four blocks are full, one is free; the old one takes it, the new one gets none
    assert run_step(scheduler) == [(0, 8, 1)]
    assert (new.block_tables, new.num_computed_tokens, new.num_output_tokens, new.num_preemptions) == ([], 0, 2, 1)
    assert list(scheduler.waiting) == [new]
    assert scheduler.counters.num_preemptions == 1
    scheduler.abort(old.request_id)
    # Its first block was still in the cache; the second was full too, but holds the last token to be run.
    assert run_step(scheduler) == [(1, 8, 1)]
    assert new.num_cached_tokens == 0  # of the prompt, when it first ran


def test_admission_leaves_a_block_for_each_running_request_to_grow():
    scheduler = make_scheduler(num_blocks=5)
    add(scheduler, 0, 8, max_tokens=4)
    run_step(scheduler)
    add(scheduler, 1, 8, max_tokens=4)  # needs two blocks, and two are free
    assert run_step(scheduler) == [(0, 8, 1)]
    assert scheduler.kv_cache.pool.num_free == 2
    scheduler.abort(0)
    assert run_step(scheduler) == [(1, 0, 8)]


def test_a_prefix_in_the_cache_is_not_computed_again():
    scheduler = make_scheduler()
    add(scheduler, 0, 10)
    run_step(scheduler)
    scheduler.abort(0)
    again = Request(1, list(range(10)), 10, SamplingParams(), seed=0)
    scheduler.add(again)
    assert run_step(scheduler) == [(1, 8, 2)]
    assert again.num_cached_tokens == scheduler.counters.num_prefix_hit_tokens == 8
    assert scheduler.counters.num_prompt_tokens == 10 + 2


def test_abort_between_schedule_and_update_leaves_the_others_alone():
    scheduler = make_scheduler()
    add(scheduler, 0, 5)
    add(scheduler, 1, 5)
    step = scheduler.schedule()
    assert scheduler.abort(0)
    assert [len(table) for table in step.requests[0].block_tables] == [2]  # what the runner was lent hasn't changed
    assert [output.request_id for output in answer(scheduler, step)] == [1]
    assert not scheduler.abort(0)
    scheduler.kv_cache.check_integrity(scheduler.running)


def test_abort_of_a_waiting_request():
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, 0, 5)
    add(scheduler, 1, 5)
    run_step(scheduler)
    assert scheduler.abort(1)
    assert (list(scheduler.waiting), list(scheduler.requests)) == ([], [0])


def test_a_finished_request_gives_its_blocks_back_at_once():
    scheduler = make_scheduler()
    add(scheduler, 0, 5, stop_token_ids=(42,))
    (output,) = answer(scheduler, scheduler.schedule(), token_id=42)
    assert (output.finish_reason, output.stop_reason) == ("stop", 42)
    assert scheduler.kv_cache.pool.num_referenced == 0
    assert scheduler.schedule().requests == ()


def test_counters():
    scheduler = make_scheduler()
    add(scheduler, 0, 30)
    for _ in range(4):
        run_step(scheduler)
    counters = scheduler.counters
    assert (counters.num_steps, counters.num_prompt_tokens, counters.num_generated_tokens) == (4, 30, 3)


def test_a_request_too_large_for_the_blocks_there_are_is_passed_a_bounded_number_of_times():
    scheduler = make_scheduler(num_blocks=10, max_num_batched_tokens=100)
    add(scheduler, 0, 17, max_tokens=20)
    run_step(scheduler)
    large = add(scheduler, 1, 30, max_tokens=4)
    started = 0
    for request_id in range(2, 40):
        add(scheduler, request_id, 1, max_tokens=1)
        started += any(r == request_id for r, *_ in run_step(scheduler))
        if large.num_times_passed == MAX_TIMES_PASSED:
            break
    assert started == large.num_times_passed == MAX_TIMES_PASSED
    add(scheduler, 90, 1, max_tokens=1)
    assert 90 not in [r for r, *_ in run_step(scheduler)]
    scheduler.abort(0)
    assert [r for r, *_ in run_step(scheduler)] == [1, 90]


def test_a_guaranteed_request_has_its_blocks_from_start_to_end():
    scheduler = make_scheduler(num_blocks=10, max_preemptions=0)
    first, second = (add(scheduler, request_id, 8, max_tokens=12) for request_id in range(2))  # five blocks each
    third = add(scheduler, 2, 1, max_tokens=1)
    assert [r for r, *_ in run_step(scheduler)] == [0, 1]
    assert (first.num_promised_blocks, scheduler.kv_cache.num_promised, scheduler.kv_cache.num_available) == (5, 6, 0)
    for _ in range(11):
        run_step(scheduler)
        scheduler.kv_cache.check_integrity(scheduler.running)
        assert third.started_at is None
    assert (first.finish_reason, second.finish_reason) == ("length", "length")
    assert [r for r, *_ in run_step(scheduler)] == [2]
    assert scheduler.counters.num_preemptions == 0


def test_a_lower_class_gives_way_first_and_who_did_so_often_is_protected():
    scheduler = make_scheduler(num_blocks=4, max_preemptions=1)
    requests = [add(scheduler, 0, 4, max_tokens=9, priority=1), add(scheduler, 1, 4, max_tokens=9, priority=0)]
    for request in requests:
        request.num_expected_tokens = 8
    while not scheduler.counters.num_preemptions:
        run_step(scheduler)
    assert [request.num_preemptions for request in requests] == [1, 0]
    assert requests[0].is_protected
    while scheduler.requests:
        run_step(scheduler)
    assert [request.num_preemptions for request in requests] == [1, 0]


def test_seats_are_left_to_a_tenant_that_has_less_than_its_share():
    scheduler = make_scheduler(max_num_seqs=4, max_num_batched_tokens=100)
    for request_id in range(8):
        add(scheduler, request_id, 2, tenant="floods")
    add(scheduler, 8, 2, tenant="quiet", max_tokens=1)
    assert [r for r, *_ in run_step(scheduler)] == [0, 8, 1]
    assert run_step(scheduler)[0][0] == 0
    assert len(scheduler.running) == 3  # the fourth seat is for the quiet one, which may be back at once
    add(scheduler, 9, 2, tenant="quiet")
    assert [r for r, *_ in run_step(scheduler)][-1] == 9


def test_a_late_request_ends_where_it_is():
    now = 0.0
    scheduler = make_scheduler(max_num_seqs=1, clock=lambda: now)
    add(scheduler, 0, 5, deadline=3.0)
    add(scheduler, 1, 5, deadline=2.0, arrived_at=1.0)
    run_step(scheduler)
    assert scheduler.end_expired() == []
    now = 3.0
    outputs = scheduler.end_expired()
    assert [(output.request_id, output.finish_reason, output.token_id) for output in outputs] == [
        (1, "error", None),
        (0, "error", None),
    ]
    assert [output.num_output_tokens for output in outputs] == [0, 1]
    assert "had 1 s, and they are over: it never left the queue" in outputs[0].error.message
    assert (outputs[0].times.started_at, outputs[1].times.started_at) == (None, 0.0)
    assert scheduler.kv_cache.pool.num_referenced == len(scheduler.requests) == 0
    assert scheduler.counters.num_aborts == {"deadline": 2}


def test_the_last_output_says_when_what_happened():
    ticks = iter(range(100))
    scheduler = make_scheduler(clock=lambda: float(next(ticks)))
    add(scheduler, 0, 4, max_tokens=2, arrived_at=-1.0)
    (first,) = answer(scheduler, scheduler.schedule())
    (last,) = answer(scheduler, scheduler.schedule())
    assert first.times is None
    times = last.times
    assert -1.0 == times.arrived_at < times.started_at < times.first_token_at < times.finished_at
    assert scheduler.started == [0]


@pytest.mark.parametrize("name", ["max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_waiting_requests"])
def test_an_impossible_setting_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
        SchedulerConfig(**{"max_model_len": 10, name: 0})


def test_a_negative_target_is_refused_and_zero_is_none():
    with pytest.raises(ConfigError, match="target_itl_ms must be at least 0, got -1"):
        SchedulerConfig(10, target_itl_ms=-1)
    assert SchedulerConfig(10, target_itl_ms=0).target_itl_ms == 0


def test_a_step_must_have_a_token_for_each_running_request():
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens \(3\) is below max_num_seqs \(4\)"):
        SchedulerConfig(10, max_num_seqs=4, max_num_batched_tokens=3)
