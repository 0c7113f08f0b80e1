"""Sampling in C++ against ``engine/sampler.py``, its specification, on every instruction set of this processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ullage.base.errors import EngineError
from ullage.engine.native_batch import SamplingBatches, decoder_arrays, sampled_tokens
from ullage.engine.sampler import Logits, adjust_logits, keep_likely, sample, uniform
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import SampledToken, ScheduledRequest
from ullage.kernels.native import native_isas, sample_logits

TINY = 5e-324  # the smallest positive float: options that only have to be above 0 may be this
ROUNDING = 1e-9
VOCAB_SIZES = [1, 2, 3, 15, 16, 17, 63, 64, 65, 100, 128, 1000, 1023, 1024, 1025, 5000]

every_isa = pytest.mark.parametrize("isa", native_isas())


def request(
    *,
    request_id: int = 0,
    seed: int = 0,
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
    banned: Sequence[int] = (),
    mask: bytes | None = None,
    **options: object,
) -> ScheduledRequest:
    history = [*prompt, *output]
    return ScheduledRequest(
        request_id=request_id,
        token_ids=history[-1:],
        num_computed_tokens=len(history) - 1,
        block_tables=[[0]],
        sampling=SamplingParams(**{"temperature": 0.0} | options),
        seed=seed,
        needs_logits=True,
        history=history,
        num_prompt_tokens=len(prompt),
        banned_token_ids=banned,
        token_mask=mask,
    )


def native_sample(logits: Logits, requests: Sequence[ScheduledRequest], isa: str) -> list[SampledToken]:
    before = logits.copy()
    sampled = sample_logits(logits, SamplingBatches(logits.shape[1]).of(requests), isa)
    np.testing.assert_array_equal(logits, before)
    return sampled_tokens(requests, sampled)


def assert_same(ours: list[SampledToken], specified: list[SampledToken]) -> None:
    for our, theirs in zip(ours, specified, strict=True):
        assert (our.request_id, our.token_id, our.error) == (theirs.request_id, theirs.token_id, theirs.error)
        assert (our.logprob is None) == (theirs.logprob is None)
        if theirs.logprob is not None:
            assert our.logprob == pytest.approx(theirs.logprob, rel=1e-6, abs=2e-6)
        assert [i for i, _ in our.top_logprobs] == [i for i, _ in theirs.top_logprobs]
        expected = [logprob for _, logprob in theirs.top_logprobs]
        assert [logprob for _, logprob in our.top_logprobs] == pytest.approx(expected, rel=1e-6, abs=2e-6)


def draw_is_clear(row: Logits, scheduled: ScheduledRequest) -> bool:
    """No weight, no sum of weights lies within rounding of what it is compared with."""
    params = scheduled.sampling
    adjusted = adjust_logits(row, scheduled) if np.isfinite(row.max()) else row
    if params.greedy or not np.isfinite(adjusted.max()):
        return True
    _, before_min_p = keep_likely(adjusted, replace(params, top_p=1.0, min_p=0.0))
    edges = np.abs(before_min_p - params.min_p)
    if params.min_p not in (0.0, 1.0) and edges.min() < ROUNDING:
        return False
    _, before_top_p = keep_likely(adjusted, replace(params, top_p=1.0))
    sums = np.cumsum(-np.sort(-before_top_p))
    if params.top_p < 1 and np.abs(sums / sums[-1] - params.top_p).min() < ROUNDING < 1 - params.top_p:
        return False
    _, weights = keep_likely(adjusted, params)
    shares = np.cumsum(weights) / weights.sum()
    number = uniform(scheduled.seed, scheduled.num_computed_tokens + len(scheduled.token_ids))
    return bool(np.abs(shares - number).min() > ROUNDING)


@st.composite
def rows(draw: st.DrawFn) -> Logits:
    size = draw(st.sampled_from(VOCAB_SIZES))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    row = random.standard_normal(size) * draw(st.sampled_from([0.0, 1e-30, 0.5, 1.0, 3.0, 100.0, 1e37]))
    if draw(st.booleans()):
        row = np.round(row * 4) / 4  # ties
    if draw(st.booleans()):
        row[random.integers(0, size, 5)] += 8.0  # what a model is sure of
    for special in draw(st.sampled_from([(), (), (), (-np.inf,), (-np.inf,), (-np.inf, np.nan), (np.inf,)])):
        row[random.random(size) < draw(st.sampled_from([0.0, 0.01, 0.5, 1.0]))] = special
    return row.astype(np.float32)


def masks(vocab_size: int) -> st.SearchStrategy[bytes]:
    num_bytes = -(-vocab_size // 32) * 4
    kinds = st.sampled_from([0, 1, 0x80, 0xFF, 0x55])
    sparse = st.lists(kinds, min_size=num_bytes, max_size=num_bytes).map(bytes)
    return sparse | st.binary(min_size=num_bytes, max_size=num_bytes)


@st.composite
def requests_for(draw: st.DrawFn, vocab_size: int) -> ScheduledRequest:
    ids = st.integers(0, vocab_size - 1)
    penalties = draw(st.booleans())
    return request(
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
        prompt=draw(st.lists(ids, min_size=1, max_size=8)),
        output=draw(st.lists(ids, max_size=8)),
        banned=draw(st.lists(ids, max_size=3)),
        mask=draw(st.none() | masks(vocab_size)),
        temperature=draw(st.sampled_from([0.0, TINY, 0.01, 0.7, 1.0, 1.3, 2.0])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.1, TINY])),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 7, 16, 50, 900, 10**12])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.2, 0.5, 2.0, TINY])) if penalties else 1.0,
        frequency_penalty=draw(st.floats(-2, 2)) if penalties else 0.0,
        presence_penalty=draw(st.floats(-2, 2)) if penalties else 0.0,
        logit_bias=draw(st.dictionaries(ids, st.floats(-100, 100), max_size=3)),
        logprobs=draw(st.sampled_from([None, 0, 1, 5, 20])),
    )


@every_isa
@given(data=st.data())
@settings(derandomize=True, deadline=None, max_examples=200)
def test_any_row_with_any_options_gives_the_specified_token(isa: str, data: st.DataObject) -> None:
    row = data.draw(rows())
    scheduled = data.draw(requests_for(row.size))
    assume(draw_is_clear(row, scheduled))
    assert_same(native_sample(row[None], [scheduled], isa), sample(row[None], [scheduled]))


DRAWS: list[dict[str, object]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.95, "logprobs": 5},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 1.0, "top_k": 20_000, "top_p": 0.5},
    {"temperature": 2.0, "min_p": 0.02},
    {"logprobs": 20},
    {"temperature": 1.3, "top_p": 0.9, "repetition_penalty": 1.3, "presence_penalty": 1.0, "frequency_penalty": 0.1},
]


@every_isa
@pytest.mark.parametrize("vocab_size", [49_152, 262_144])
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_rows_as_long_as_vocabularies_are_give_the_specified_tokens(vocab_size: int, spread: float, isa: str) -> None:
    random = np.random.default_rng(vocab_size)
    logits = (random.standard_normal((len(DRAWS), vocab_size)) * spread).astype(np.float32)
    requests = [
        request(request_id=n, seed=n, prompt=range(50), output=[*range(40, 60)] * 2, **options)
        for n, options in enumerate(DRAWS)
    ]
    assert all(draw_is_clear(*pair) for pair in zip(logits, requests, strict=True))
    assert_same(native_sample(logits, requests, isa), sample(logits, requests))


@every_isa
@pytest.mark.parametrize("top_p", [0.25, 0.5, 0.75, 1 - 2**-53])
@pytest.mark.parametrize("options", [{}, {"top_k": 100}, {"min_p": 1.0}], ids=str)
def test_equal_values_are_kept_by_id_exactly(top_p: float, options: dict[str, float], isa: str) -> None:
    """All weights are 1 or nearly 0, so that sums are whole numbers and no rounding can be blamed."""
    row = np.full(300, -1000.0, np.float32)
    row[np.random.default_rng(0).permutation(300)[:128]] = 3.5
    for seed in range(40):
        scheduled = request(seed=seed, temperature=1.0, top_p=top_p, **options)
        assert_same(native_sample(row[None], [scheduled], isa), sample(row[None], [scheduled]))


@every_isa
@pytest.mark.parametrize("options", [{"min_p": 1.0}, {"top_p": 0.7}, {"top_k": 70, "top_p": 0.7}], ids=str)
def test_logits_too_close_for_their_weights_to_differ_rank_by_id(options: dict[str, float], isa: str) -> None:
    row = np.random.default_rng(0).standard_normal(200).astype(np.float32) * np.float32(1e-30)
    for seed in range(40):
        scheduled = request(seed=seed, temperature=0.5, **options)
        assert_same(native_sample(row[None], [scheduled], isa), sample(row[None], [scheduled]))


@every_isa
def test_the_first_of_equals_is_found_wherever_it_lies(isa: str) -> None:
    for first in range(0, 200, 7):
        row = np.zeros(201, np.float32)
        row[first:] = 1.0
        assert native_sample(row[None], [request()], isa) == [SampledToken(0, first)]


@every_isa
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_without_a_best_gives_no_token_and_says_why(value: float, isa: str) -> None:
    row = np.full(130, -np.inf, np.float32)
    row[129] = value
    for options in ({}, {"temperature": 1.0, "top_p": 0.5, "logprobs": 3}, {"banned": [1], "logit_bias": {2: 1.0}}):
        [answer] = native_sample(row[None], [request(request_id=7, **options)], isa)
        assert answer == SampledToken(7, None, error=f"no token can be chosen: the largest logit is {value}")


@every_isa
def test_infinities_of_both_signs_are_not_taken_for_nan(isa: str) -> None:
    row = np.array([-np.inf, np.inf, 0.0], np.float32)
    [answer] = native_sample(row[None], [request()], isa)
    assert answer.error.endswith("is inf")


@every_isa
def test_a_ban_on_all_tokens_leaves_none(isa: str) -> None:
    [answer] = native_sample(np.zeros((1, 3), np.float32), [request(banned=[0, 1, 2])], isa)
    assert answer.token_id is None
    assert answer.error.endswith("is -inf")


def test_masks_of_another_size_are_refused_as_the_specification_does() -> None:
    scheduled = request(request_id=3, mask=bytes(8))
    with pytest.raises(EngineError, match="request 3: a mask of 8 bytes for 5 tokens"):
        sample(np.zeros((1, 5), np.float32), [scheduled])
    with pytest.raises(EngineError, match="request 3: a mask of 8 bytes for 5 tokens"):
        SamplingBatches(5).of([scheduled])


@every_isa
@pytest.mark.parametrize("vocab_size", [49_152, 262_144, 100_001])
def test_masked_rows_as_long_as_vocabularies_give_the_specified_tokens(vocab_size: int, isa: str) -> None:
    random = np.random.default_rng(vocab_size)
    logits = random.standard_normal((len(DRAWS), vocab_size)).astype(np.float32)
    few = np.packbits(random.random(-(-vocab_size // 32) * 32) < 0.001, bitorder="little").tobytes()
    many = np.packbits(random.random(-(-vocab_size // 32) * 32) < 0.999, bitorder="little").tobytes()
    requests = [
        request(request_id=n, seed=n, mask=(few, many, None)[n % 3], **options) for n, options in enumerate(DRAWS)
    ]
    assert all(draw_is_clear(*pair) for pair in zip(logits, requests, strict=True))
    assert_same(native_sample(logits, requests, isa), sample(logits, requests))


@pytest.mark.parametrize("options", [{"banned": [5]}, {"banned": [-1]}, {"logit_bias": {5: 1.0}}], ids=str)
def test_ids_outside_the_vocabulary_are_refused_as_the_specification_does(options: dict[str, object]) -> None:
    scheduled = request(request_id=3, **options)
    with pytest.raises(EngineError, match=r"request 3: token ids must be 0..4, got \["):
        sample(np.zeros((1, 5), np.float32), [scheduled])
    with pytest.raises(EngineError, match=r"request 3: token ids must be 0..4, got \["):
        SamplingBatches(5).of([scheduled])


def test_only_what_the_penalties_count_travels() -> None:
    history = {"prompt": range(100), "output": [7, 8, 7]}
    assert SamplingBatches(200).of([request(**history, temperature=1.0)]).token_ids.tolist() == []
    assert SamplingBatches(200).of([request(**history, presence_penalty=1.0)]).token_ids.tolist() == [7, 8, 7]
    batch = SamplingBatches(200).of([request(), request(**history, repetition_penalty=1.1, banned=[5])])
    assert batch.token_ids.tolist() == [*range(100), 7, 8, 7, 5]
    starts = ["history_start", "output_start", "bias_start", "banned_start", "end"]
    assert batch.rows[starts][1].item() == (0, 100, 103, 103, 104)


def test_requests_become_the_arrays_of_a_step() -> None:
    prefill = replace(
        request(prompt=range(10, 15)), token_ids=[10, 11, 12], num_computed_tokens=0, block_tables=[[4, 2]]
    )
    chunk = replace(prefill, needs_logits=False, block_tables=[[9]])
    decode = replace(request(prompt=range(7)), block_tables=[[1, 3, 5]])
    arrays = decoder_arrays([chunk, decode, prefill])
    assert all(numbers.dtype == np.int32 for numbers in arrays)
    assert [numbers.tolist() for numbers in arrays] == [
        [10, 11, 12, 6, 10, 11, 12],
        [0, 1, 2, 6, 0, 1, 2],
        [0, 3, 4, 7],
        [9, 1, 3, 5, 4, 2],
        [0, 1, 4],
        [3, 6],
    ]
