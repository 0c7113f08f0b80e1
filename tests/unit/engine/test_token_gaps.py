"""Gaps between tokens, as the scheduler notes them."""

from tests.fake_engine import make_core, run

from ullage.engine.sampling_params import SamplingParams
from ullage.engine.token_gaps import GAP_SECONDS, TokenGaps


def test_a_gap_falls_into_the_first_bucket_that_holds_it() -> None:
    gaps = TokenGaps()
    for seconds in (0.0, GAP_SECONDS[0], 0.02, 99.0):
        gaps.add(seconds)
    assert gaps.counts == [2, 0, 0, 0, 1, *[0] * (len(GAP_SECONDS) - 5), 1]
    assert gaps.total_seconds == 99.02 + GAP_SECONDS[0]


def test_each_token_but_the_first_of_a_request_has_a_gap() -> None:
    core = make_core()
    for num_tokens in (1, 5):
        core.add_request([1, 2, 3], SamplingParams(max_tokens=num_tokens, ignore_eos=True))
    run(core)
    assert sum(core.figures().token_gap_counts) == 4


def test_a_probe_is_in_no_count_and_in_no_cache() -> None:
    core = make_core(block_size=2, num_blocks=8)
    sampling = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0.0)
    core.add_request([1, 2, 3, 4], sampling, is_probe=True)
    assert run(core)
    core.add_request([1, 2, 3, 4], sampling, is_probe=True)
    core.step()
    running = core.status()
    assert running.num_running == 0
    core.abort(1)
    status = core.status()
    counts = (status.num_prompt_tokens, status.num_generated_tokens, status.num_prefix_hit_tokens)
    assert counts == (0, 0, 0)
    assert status.num_aborts == {}
    assert sum(core.figures().token_gap_counts) == 0
    assert core.ledger.snapshot().kv_cached_bytes == 0
    core.check_integrity()


def test_a_probe_finds_nothing_in_the_cache_of_others() -> None:
    core = make_core(block_size=2, num_blocks=8)
    sampling = SamplingParams(max_tokens=2, ignore_eos=True, temperature=0.0)
    core.add_request([1, 2, 3, 4], sampling)
    run(core)
    core.add_request([1, 2, 3, 4], sampling, is_probe=True)
    outputs = run(core)
    assert outputs[1][-1].num_cached_tokens == 0
