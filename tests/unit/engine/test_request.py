from __future__ import annotations

import pytest

from ullage.base.errors import ContextLengthError, InvalidRequestError, KVCapacityError
from ullage.engine.request import Request, RequestLimits
from ullage.engine.sampling_params import SamplingParams
from ullage.plan.block_demand import BlockDemand

LIMITS = RequestLimits(max_model_len=100, num_blocks=5, demand=BlockDemand(16), vocab_size=50)


def request(**sampling: object) -> Request:
    params = SamplingParams(**{"max_tokens": 5, **sampling})
    return Request(0, [1, 2, 3], num_prompt_tokens=3, sampling=params, seed=0, eos_token_ids=frozenset({49}))


def test_ends_at_the_models_own_end_of_sequence():
    ended = request()
    ended.append(49)
    assert (ended.finish_reason, ended.stop_reason) == ("stop", None)


def test_ends_at_a_stop_token_and_says_which():
    ended = request(stop_token_ids=(7, 8))
    ended.append(8)
    assert (ended.finish_reason, ended.stop_reason) == ("stop", 8)


def test_ends_with_its_last_token():
    ended = request(max_tokens=2)
    ended.append(5)
    assert ended.finish_reason is None
    ended.append(5)
    assert (ended.finish_reason, ended.num_output_tokens) == ("length", 2)


def test_end_of_sequence_as_the_last_token_is_a_stop():
    ended = request(max_tokens=1)
    ended.append(49)
    assert ended.finish_reason == "stop"


def test_no_ending_token_before_min_tokens():
    young = request(min_tokens=2, stop_token_ids=(7,))
    young.append(1)
    assert young.banned_token_ids == (49, 7)
    young.append(1)
    assert young.banned_token_ids == ()


def test_a_request_that_fits_to_the_token_passes():
    LIMITS.check([1] * 75, SamplingParams(max_tokens=5))


def test_an_empty_prompt_is_refused():
    with pytest.raises(InvalidRequestError, match="empty") as caught:
        LIMITS.check([], SamplingParams())
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("token_id", [-1, 50, 10**9])
def test_token_ids_outside_the_vocabulary_are_refused(token_id):
    for prompt, sampling, param in (
        ([1, token_id], SamplingParams(), "prompt"),
        ([1], SamplingParams(logit_bias={token_id: 1.0}), "logit_bias"),
        ([1], SamplingParams(stop_token_ids=(token_id,)), "stop_token_ids"),
    ):
        with pytest.raises(InvalidRequestError, match=rf"{param} has token id {token_id}, .* 0 to 49") as caught:
            LIMITS.check(prompt, sampling)
        assert caught.value.param == param


def test_more_than_the_context_is_refused_with_the_numbers():
    with pytest.raises(
        ContextLengthError, match=r"90 prompt tokens \+ 11 output tokens = 101.* limit is 100"
    ) as caught:
        LIMITS.check([1] * 90, SamplingParams(max_tokens=11))
    assert caught.value.param == "max_tokens"
    with pytest.raises(ContextLengthError) as caught:
        LIMITS.check([1] * 100, SamplingParams(max_tokens=1))
    assert caught.value.param == "prompt"


def test_more_than_the_pool_is_refused_with_the_numbers():
    with pytest.raises(KVCapacityError, match=r"= 81 need 6 KV blocks, but the pool has 5: at most 80 tokens"):
        LIMITS.check([1] * 76, SamplingParams(max_tokens=5))


def test_behind_its_window_a_request_may_be_longer_than_the_pool():
    demand = BlockDemand(16, (None, 20), max_step_tokens=13)  # 32 tokens touch at most three blocks
    limits = RequestLimits(max_model_len=1000, num_blocks=8, demand=demand, vocab_size=50)
    assert limits.max_request_tokens == 5 * 16
    limits.check([1] * 76, SamplingParams(max_tokens=4))
    with pytest.raises(KVCapacityError, match=r"= 81 need 9 KV blocks, but the pool has 8: at most 80 tokens"):
        limits.check([1] * 76, SamplingParams(max_tokens=5))


class CountedTokens(list[int]):
    """Tells whether anybody looked at the tokens themselves."""

    num_scans = 0

    def __iter__(self):
        self.num_scans += 1
        return super().__iter__()


def test_a_prompt_far_too_long_is_refused_by_its_length_alone():
    prompt = CountedTokens([-1] * 100)
    with pytest.raises(ContextLengthError):
        LIMITS.check(prompt, SamplingParams())
    assert prompt.num_scans == 0


@pytest.mark.parametrize("token_id", [1.0, 1.5, "1", True])
def test_token_ids_must_be_ints(token_id):
    with pytest.raises(InvalidRequestError, match="ids are ints from 0 to 49"):
        LIMITS.check([token_id], SamplingParams())
