from __future__ import annotations

from typing import Any

import pytest

from ullage.base.errors import InvalidRequestError
from ullage.engine.sampling_params import SamplingParams
from ullage.protocol.chat import ChatCompletionRequest
from ullage.protocol.json_text import validate
from ullage.service.sampling import of_choice, sampling_params


def params(**fields: Any) -> SamplingParams:
    messages = [{"role": "user", "content": "hi"}]
    request = validate(ChatCompletionRequest, {"model": "tiny", "messages": messages, **fields})
    return sampling_params(request, default_max_tokens=50)


def test_an_empty_request_gets_the_api_defaults():
    assert params() == SamplingParams(max_tokens=50)


def test_all_fields_arrive():
    sampling = params(
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        logit_bias={"5": -100},
        seed=-4,
        logprobs=True,
        top_logprobs=3,
        stop="end",
        stop_token_ids=[8],
        ignore_eos=True,
        min_tokens=2,
    )
    assert sampling == SamplingParams(
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        logit_bias={5: -100},
        seed=-4,
        logprobs=3,
        stop=("end",),
        stop_token_ids=(8,),
        ignore_eos=True,
        min_tokens=2,
    )


def test_top_p_of_zero_is_the_most_likely_token():
    assert params(top_p=0) == SamplingParams(max_tokens=50, top_k=1)


def test_top_k_of_minus_one_is_all_tokens():
    assert params(top_k=-1) == params(top_k=0) == params()


def test_each_choice_has_a_seed_of_its_own():
    assert [of_choice(params(seed=7), choice).seed for choice in range(3)] == [7, 8, 9]
    assert of_choice(params(seed=2**63 - 1), 127).seed == 2**63 + 126


def test_choices_without_a_seed_share_their_parameters():
    sampling = params(logit_bias={"5": 1})
    assert of_choice(sampling, 1) is sampling


def test_logprobs_without_top_logprobs_are_those_of_the_chosen_token():
    assert params(logprobs=True).logprobs == 0
    assert params(logprobs=False).logprobs is None


@pytest.mark.parametrize("key", ["x", "-1", "1.5", "", "²", "9" * 30])
def test_logit_bias_needs_token_ids(key):
    with pytest.raises(InvalidRequestError) as caught:
        params(logit_bias={key: 1})
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 2.1), ("temperature", -0.1), ("min_p", 2), ("repetition_penalty", 0), ("presence_penalty", -3)],
)
def test_a_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(InvalidRequestError) as caught:
        params(**{field: value})
    assert caught.value.param == field
