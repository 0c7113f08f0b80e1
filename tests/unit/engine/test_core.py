from __future__ import annotations

import pytest
from tests.fake_engine import EOS_TOKEN_ID, expected_tokens, make_core, run

from ullage.engine.core import EngineCore
from ullage.engine.fake_runner import FakeRunner
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import SampledToken, ScheduledStep

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def tokens_of(core: EngineCore, prompt: list[int], *, beside: int = 0) -> list[int]:
    request_id = core.add_request(prompt, SamplingParams(max_tokens=12))
    for i in range(beside):
        core.add_request([i, *prompt], SamplingParams(max_tokens=12))
    return [output.token_id for output in run(core)[request_id]]


def test_a_request_from_prompt_to_last_token():
    core = make_core()
    request_id = core.add_request(PROMPT, SamplingParams(max_tokens=6, logprobs=2))
    outputs = run(core)[request_id]
    assert [output.token_id for output in outputs] == expected_tokens(core, PROMPT, 6)
    assert [output.finish_reason for output in outputs] == [None] * 5 + ["length"]
    assert all(output.logprob is not None and len(output.top_logprobs) == 2 for output in outputs)
    assert not core.has_work


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 4, "max_num_seqs": 1},
        {"max_num_batched_tokens": 100},
        {"num_blocks": 100, "block_size": 1},
        {"num_blocks": 6, "max_num_seqs": 4, "max_num_batched_tokens": 8},
        {"enable_prefix_caching": False},
        {"windows": (None, 5, 5), "num_blocks": 48},
        {"windows": (5,), "num_blocks": 5, "max_num_batched_tokens": 4},
    ],
)
@pytest.mark.parametrize("beside", [0, 3])
def test_tokens_do_not_depend_on_how_they_are_run(settings, beside):
    core = make_core(**settings)
    cold, warm = tokens_of(core, PROMPT, beside=beside), tokens_of(core, PROMPT, beside=beside)
    assert cold == warm == expected_tokens(core, PROMPT, 12)


def test_preemption_does_not_change_tokens():
    core = make_core(num_blocks=8, block_size=4)
    prompts = [[i] * 5 for i in range(4)]
    ids = [core.add_request(prompt, SamplingParams(max_tokens=20)) for prompt in prompts]
    outputs = run(core)
    assert core.scheduler.counters.num_preemptions > 0
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert [output.token_id for output in outputs[request_id]] == expected_tokens(core, prompt, 20)


def test_end_of_sequence_ends_unless_ignored():
    core = make_core(eos_probability=1.0)
    ends = core.add_request(PROMPT, SamplingParams(max_tokens=5))
    later = core.add_request(PROMPT, SamplingParams(max_tokens=5, min_tokens=2))
    ignores = core.add_request(PROMPT, SamplingParams(max_tokens=5, ignore_eos=True))
    outputs = run(core)
    assert [output.token_id for output in outputs[ends]] == [EOS_TOKEN_ID]
    assert (outputs[ends][-1].finish_reason, outputs[ends][-1].stop_reason) == ("stop", None)
    assert [output.token_id == EOS_TOKEN_ID for output in outputs[later]] == [False, False, True]
    assert [output.token_id for output in outputs[ignores]] == [EOS_TOKEN_ID] * 5


class SeedReader(FakeRunner):
    def execute(self, step: ScheduledStep) -> list[SampledToken]:
        self.seeds = {request.request_id: request.seed for request in step.requests}
        return super().execute(step)


def seeds_of(engine_seed: int) -> dict[int, int]:
    core = make_core(seed=engine_seed, runner_class=SeedReader)
    for seed in (None, 7, None):
        core.add_request(PROMPT[:3], SamplingParams(seed=seed))
    core.step()
    assert isinstance(core.runner, SeedReader)
    return core.runner.seeds


def test_seeds_follow_from_the_engines_seed_unless_a_request_brings_its_own():
    seeds = seeds_of(1)
    assert seeds == seeds_of(1)
    assert seeds[1] == seeds_of(2)[1] == 7
    assert len({*seeds.values(), *seeds_of(2).values()}) == 5


def test_close_frees_everything():
    core = make_core()
    core.add_request(PROMPT, SamplingParams())
    core.step()
    core.close()
    assert not core.has_work
    assert core.ledger.snapshot().kv_reserved_bytes == 0
    assert isinstance(core.runner, FakeRunner)
    assert core.runner.closed
