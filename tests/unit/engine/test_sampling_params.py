from __future__ import annotations

import math

import numpy as np
import pytest

from ullage.base.errors import InvalidRequestError
from ullage.engine.sampling_params import MAX_STOP_LENGTH, MAX_STOP_TEXTS, MAX_TOKEN_IDS, SamplingParams

WHOLE = ("max_tokens", "top_k", "min_tokens", "seed", "logprobs")
NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def refused(**values: object) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**values)
    assert caught.value.param == next(iter(values))
    return caught.value


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [1.5, 1.0, "1", True, np.int64(1)])
def test_what_counts_must_be_an_int(name, value):
    assert f"{name} must be an int, got {value!r}" in refused(**{name: value}).message


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["1", True, None, 1j])
def test_what_is_measured_must_be_a_number(name, value):
    assert f"{name} must be a number" in refused(**{name: value}).message


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -2.5])
def test_what_is_measured_must_be_in_its_range(name, value):
    assert f"{name} must be a" in refused(**{name: value}).message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", "END"),
        ("stop", (1,)),
        ("stop", None),
        ("stop", ("a", "")),
        ("stop", ("x" * (MAX_STOP_LENGTH + 1),)),
        ("stop", ("x",) * (MAX_STOP_TEXTS + 1)),
        ("stop_token_ids", 5),
        ("stop_token_ids", (1.5,)),
        ("stop_token_ids", (True,)),
        ("stop_token_ids", (1,) * (MAX_TOKEN_IDS + 1)),
        ("logit_bias", [(1, 1.0)]),
        ("logit_bias", {"1": 1.0}),
        ("logit_bias", {1: "1"}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", dict.fromkeys(range(MAX_TOKEN_IDS + 1), 1.0)),
        ("ignore_eos", "no"),
    ],
)
def test_entries_of_another_kind_or_too_many_are_refused(name, value):
    assert len(refused(**{name: value}).message) < 200


def test_the_largest_that_is_allowed_passes():
    params = SamplingParams(
        stop=["x" * MAX_STOP_LENGTH] * MAX_STOP_TEXTS,
        stop_token_ids=[1] * MAX_TOKEN_IDS,
        logit_bias=dict.fromkeys(range(MAX_TOKEN_IDS), 1),
        seed=2**64 - 1,
        temperature=2,
        top_k=10**9,
    )
    assert not params.greedy
