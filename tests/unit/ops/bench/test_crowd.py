from __future__ import annotations

from tests.fake_engine import make_core

from ullage.engine.embedded import EmbeddedEngine
from ullage.engine.sampling_params import SamplingParams
from ullage.ops.bench import crowd


def test_requests_are_the_same_for_the_same_seed_and_half_of_them_stop_early():
    requests = crowd.random_requests(200, 128, [5, 7], seed=3)
    assert requests == crowd.random_requests(200, 128, [5, 7], seed=3)
    stopped = sum(request.sampling.stop_token_ids == (5, 7) for request in requests)
    assert 70 < stopped < 130
    assert {*map(type, (request.sampling for request in requests))} == {SamplingParams}


async def test_a_crowd_in_a_small_pool_all_end_and_are_counted():
    core = make_core(num_blocks=100, max_model_len=300, max_waiting_requests=40)
    engine = EmbeddedEngine(core, None)
    await engine.start()
    try:
        figures = await crowd.run_all(engine, crowd.random_requests(20, 100, [5], seed=0))
    finally:
        await engine.stop()
    assert figures["num_ended"] == figures["num_requests"] == 20
    assert figures["num_output_tokens"] == core.scheduler.counters.num_generated_tokens
    assert figures["most_preemptions_of_one"] <= core.scheduler.config.max_preemptions


async def test_only_what_came_after_the_warm_up_counts_and_shares_add_up():
    core = make_core(num_blocks=400, max_model_len=300, max_waiting_requests=40)
    engine = EmbeddedEngine(core, None)
    await engine.start()
    try:
        figures = await crowd.measure_tenants(
            engine, vocab_size=100, quiet_clients=2, flooding_clients=10, seconds=0.5, warm_up_seconds=0.05
        )
    finally:
        await engine.stop()
    quiet, flooding = figures["quiet_tokens_per_second"], figures["flooding_tokens_per_second"]
    assert 0 < figures["share_of_tokens"] == quiet / (quiet + flooding) < 1
    assert figures["num_quiet_requests"] > 0
    assert figures["first_token_ratio"] > 0
