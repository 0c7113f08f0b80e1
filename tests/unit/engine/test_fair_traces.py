"""Random lives of two tenants that always have something waiting: neither gets ahead by more than can be said."""

from __future__ import annotations

import random

import pytest
from tests.fake_engine import make_core

from ullage.engine.sampling_params import SamplingParams
from ullage.engine.scheduler import MAX_TIMES_PASSED
from ullage.engine.waiting_queue import OUTPUT_TOKEN_COST, PROMPT_TOKEN_COST

MOST_PROMPT, MOST_OUTPUT = 30, 20
MOST_COST = PROMPT_TOKEN_COST * MOST_PROMPT + OUTPUT_TOKEN_COST * MOST_OUTPUT


def most_apart(seed: int) -> tuple[float, float, float]:
    """(largest difference in weighted service, the bound on it, service of the one that had less)"""
    draw = random.Random(seed)
    weights = {"a": 1.0, "b": draw.choice([1.0, 1.0, 2.0, 0.5])}
    seats = draw.randint(1, 6)
    core = make_core(
        num_blocks=draw.randint(13, 60),
        max_num_seqs=seats,
        max_num_batched_tokens=seats + draw.choice([4, 30]),
        max_preemptions=draw.choice([0, 2]),
        seed=seed,
    )
    owner: dict[int, str] = {}
    lengths: dict[int, int] = {}
    service = dict.fromkeys(weights, 0.0)
    # Each has something waiting all the time; one sends small requests, the other one large ones.
    sizes = (
        {"a": (1, 5), "b": (MOST_PROMPT // 2, MOST_PROMPT)} if draw.random() < 0.5 else dict.fromkeys(weights, (1, 30))
    )
    # What can run at one time, once for each of the two, and what may pass a large request.
    bound = (2 * seats + MAX_TIMES_PASSED) * MOST_COST / min(weights.values())
    bound += core.scheduler.config.max_num_batched_tokens  # so far behind before it may have more than its seats
    apart = 0.0
    for _ in range(1500):
        for tenant, weight in weights.items():
            for _ in range(3 - sum(request.tenant == tenant for request in core.scheduler.waiting)):
                prompt = [draw.randrange(100) for _ in range(draw.randint(*sizes[tenant]))]
                sampling = SamplingParams(max_tokens=draw.randint(1, MOST_OUTPUT))
                request_id = core.add_request(prompt, sampling, tenant=tenant, weight=weight)
                owner[request_id], lengths[request_id] = tenant, len(prompt)
        for output in core.step():
            tenant = owner[output.request_id]
            service[tenant] += OUTPUT_TOKEN_COST / weights[tenant]
        for request_id in core.take_started():
            service[owner[request_id]] += PROMPT_TOKEN_COST * lengths[request_id] / weights[owner[request_id]]
        apart = max(apart, abs(service["a"] - service["b"]))
    return apart, bound, min(service.values())


@pytest.mark.parametrize("seed", range(12))
def test_backlogged_tenants_stay_within_the_bound_of_each_other(seed):
    apart, bound, least = most_apart(seed)
    assert apart <= bound
    assert least > 1500 / 4
