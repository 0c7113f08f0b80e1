"""Each option of the sampler against its definition, and the draws against the distribution they should follow."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.base.errors import EngineError
from ullage.engine.sampler import adjust_logits, draw, keep_likely, largest, rank, sample, splitmix64, uniform
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import SampledToken, ScheduledRequest

TINY = 5e-324  # the smallest positive float: options that only have to be above 0 may be this


def request(
    *,
    request_id: int = 0,
    seed: int = 0,
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
    num_computed_tokens: int | None = None,
    banned: Sequence[int] = (),
    mask: bytes | None = None,
    **options: object,
) -> ScheduledRequest:
    history = [*prompt, *output]
    start = len(history) - 1 if num_computed_tokens is None else num_computed_tokens
    return ScheduledRequest(
        request_id=request_id,
        token_ids=history[start:],
        num_computed_tokens=start,
        block_tables=[[0]],
        sampling=SamplingParams(**{"temperature": 0.0} | options),
        seed=seed,
        needs_logits=True,
        history=history,
        num_prompt_tokens=len(prompt),
        banned_token_ids=banned,
        token_mask=mask,
    )


def row(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def sample_one(logits: np.ndarray, scheduled: ScheduledRequest) -> SampledToken:
    before = logits.copy()
    (token,) = sample(logits[None], [scheduled])
    np.testing.assert_array_equal(logits, before)
    return token


# Greedy and log-probabilities


def test_greedy_takes_the_largest_and_the_lowest_id_of_equals() -> None:
    logits = np.stack([row(0, 3, 1, 3), row(5, 5, 5, 5), row(-3, -2, -1, -1)])
    requests = [request(request_id=n) for n in (4, 2, 9)]
    assert sample(logits, requests) == [SampledToken(4, 1), SampledToken(2, 0), SampledToken(9, 2)]


def test_greedy_beside_a_request_with_options_chooses_the_same() -> None:
    logits = np.stack([row(0, 3, 1, 3), row(0, 3, 1, 3)])
    assert sample(logits, [request(), request(request_id=1, temperature=1.0)])[0] == SampledToken(0, 1)


def test_no_rows_give_no_tokens() -> None:
    assert sample(np.empty((0, 5), dtype=np.float32), []) == []


def test_logprobs_are_those_of_the_raw_logits_best_first_and_lowest_id_of_equals_first() -> None:
    logits = row(1, 2, 3, 2, -np.inf)
    token = sample_one(
        logits,
        request(temperature=0.5, top_k=1, logit_bias={0: 50}, repetition_penalty=1.5, prompt=(2,), logprobs=3),
    )
    total = math.log(math.e + 2 * math.e**2 + math.e**3)
    assert token.token_id == 0
    assert token.logprob == pytest.approx(1 - total, abs=1e-6)
    assert [i for i, _ in token.top_logprobs] == [2, 1, 3]
    assert [p for _, p in token.top_logprobs] == pytest.approx([3 - total, 2 - total, 2 - total], abs=1e-6)


def test_logprobs_zero_gives_the_chosen_tokens_alone_and_none_gives_none() -> None:
    chosen = sample_one(row(0, 0), request(logprobs=0))
    assert chosen.logprob == pytest.approx(-math.log(2))
    assert chosen.top_logprobs == ()
    assert sample_one(row(0, 0), request()) == SampledToken(0, 0, None, ())


def test_more_logprobs_than_tokens_gives_all_tokens() -> None:
    assert len(sample_one(row(0, 1, 2), request(logprobs=20)).top_logprobs) == 3


# Bias, penalties, bans


def test_repetition_penalty_counts_prompt_and_output_once_each() -> None:
    scheduled = request(prompt=(0, 1, 1), output=(2, 2), repetition_penalty=2.0)
    assert adjust_logits(row(4, -4, 3, 3, -3), scheduled).tolist() == [2, -8, 1.5, 3, -3]


def test_presence_and_frequency_penalties_count_the_output_alone() -> None:
    scheduled = request(prompt=(0, 0), output=(1, 2, 2, 2), presence_penalty=0.5, frequency_penalty=0.25)
    assert adjust_logits(row(1, 1, 1, 1), scheduled).tolist() == [1, 0.25, -0.25, 1]


def test_penalties_before_any_output_count_the_prompt_only_for_repetition() -> None:
    scheduled = request(prompt=(1,), presence_penalty=2.0, frequency_penalty=2.0, repetition_penalty=2.0)
    assert adjust_logits(row(1, 1), scheduled).tolist() == [1, 0.5]


def test_bias_is_added_before_the_penalties() -> None:
    scheduled = request(prompt=(1,), logit_bias={1: 4.0, 2: -1.0}, repetition_penalty=2.0)
    assert adjust_logits(row(0, 2, 0), scheduled).tolist() == [0, 3, -1]


@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=4, max_size=4),
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    output=st.lists(st.integers(0, 3), max_size=6),
    repetition=st.floats(0.1, 2),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    bias=st.dictionaries(st.integers(0, 3), st.floats(-100, 100)),
)
@settings(derandomize=True, deadline=None)
def test_adjusted_logits_match_the_definition_token_by_token(
    logits: list[float],
    prompt: list[int],
    output: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
) -> None:
    scheduled = request(
        prompt=prompt,
        output=output,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
    )
    adjusted = adjust_logits(row(*logits), scheduled)
    for token_id, value in enumerate(logits):
        value += bias.get(token_id, 0.0)
        if token_id in prompt or token_id in output:
            value = value / repetition if value > 0 else value * repetition
        value -= frequency * output.count(token_id) + presence * (token_id in output)
        assert adjusted[token_id] == pytest.approx(value, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_banned_token_is_never_chosen_whatever_its_bias(temperature: float) -> None:
    for seed in range(50):
        scheduled = request(banned=(1, 2), logit_bias={1: 100.0}, temperature=temperature, seed=seed)
        assert sample_one(row(0, 50, 50, 0), scheduled).token_id in (0, 3)


def test_a_repetition_penalty_close_to_zero_stays_finite() -> None:
    scheduled = request(prompt=(0, 1), repetition_penalty=TINY, temperature=1.0)
    assert np.isfinite(adjust_logits(row(5, 4, 9), scheduled)).all()
    assert sample_one(row(5, 4, 9), scheduled).token_id in (0, 1)


# What can't be sampled


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0}, {"logprobs": 1}, {"repetition_penalty": 1.5, "prompt": (1,)}], ids=str
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_logit_that_is_not_a_number_leaves_that_request_without_a_token(
    options: dict[str, object], bad: float
) -> None:
    logits = np.stack([row(0, -80, 80), row(0, bad, 2)])
    good, failed = sample(logits, [request(request_id=30, **options), request(request_id=31, **options)])
    assert (good.request_id, good.token_id, good.error) == (30, 2, "")
    assert (failed.request_id, failed.token_id) == (31, None)
    assert str(bad) in failed.error


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_banning_every_token_leaves_the_request_without_one(temperature: float) -> None:
    token = sample_one(row(1, 2), request(request_id=5, banned=(0, 1), temperature=temperature))
    assert (token.request_id, token.token_id) == (5, None)
    assert "no token can be chosen" in token.error


@pytest.mark.parametrize("options", [{"logit_bias": {7: 1.0}}, {"logit_bias": {-1: 1.0}}, {"banned": (7,)}], ids=str)
def test_an_id_outside_the_vocabulary_is_an_error_that_names_the_request(options: dict[str, object]) -> None:
    with pytest.raises(EngineError, match="request 5"):
        sample_one(row(1, 2), request(request_id=5, **options))


# Filters

LOGITS = st.lists(st.one_of(st.floats(-20, 20, width=32), st.integers(-3, 3)), min_size=1, max_size=40)
TEMPERATURES = st.floats(0.05, 2)


def probabilities(logits: Sequence[float], temperature: float) -> list[float]:
    weights = [
        math.exp((float(np.float32(v)) - max(map(float, map(np.float32, logits)))) / temperature) for v in logits
    ]
    return [w / math.fsum(weights) for w in weights]


def ranking(values: Sequence[float]) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (-float(np.float32(values[i])), i))


def kept(logits: Sequence[float], **options: float) -> list[int]:
    token_ids, weights = keep_likely(row(*logits), SamplingParams(**options))
    assert weights.max() == 1.0
    assert token_ids.tolist() == sorted(token_ids.tolist())
    return token_ids.tolist()


def check_smallest_set(kept_ids: list[int], ranked: list[int], chances: dict[int, float], share: float) -> None:
    """``kept_ids`` are the first of ``ranked``, hold ``share`` of the chances, and would not without the last."""
    assert kept_ids == sorted(ranked[: len(kept_ids)])
    total = math.fsum(chances[i] for i in ranked)
    assert math.fsum(chances[i] for i in kept_ids) >= share * total - 1e-9
    without_last = math.fsum(chances[i] for i in ranked[: len(kept_ids) - 1])
    assert without_last < share * total + 1e-9


@given(logits=LOGITS, temperature=TEMPERATURES, top_k=st.integers(0, 45))
@settings(derandomize=True, deadline=None)
def test_top_k_keeps_the_k_first_of_the_ranking(logits: list[float], temperature: float, top_k: int) -> None:
    assert kept(logits, temperature=temperature, top_k=top_k) == sorted(ranking(logits)[: top_k or len(logits)])


@given(logits=LOGITS, temperature=TEMPERATURES, min_p=st.floats(0, 1))
@settings(derandomize=True, deadline=None)
def test_min_p_keeps_tokens_that_fraction_as_likely_as_the_best(
    logits: list[float], temperature: float, min_p: float
) -> None:
    chances = probabilities(logits, temperature)
    kept_ids = kept(logits, temperature=temperature, min_p=min_p)
    for token_id, chance in enumerate(chances):
        if abs(chance - min_p * max(chances)) > 1e-9:
            assert (token_id in kept_ids) == (chance > min_p * max(chances))


@given(logits=LOGITS, temperature=TEMPERATURES, top_p=st.floats(0, 1, exclude_min=True))
@settings(derandomize=True, deadline=None)
def test_top_p_keeps_the_smallest_set_that_reaches_the_share(
    logits: list[float], temperature: float, top_p: float
) -> None:
    chances = dict(enumerate(probabilities(logits, temperature)))
    check_smallest_set(kept(logits, temperature=temperature, top_p=top_p), ranking(logits), chances, top_p)


@given(
    logits=LOGITS,
    temperature=TEMPERATURES,
    top_k=st.integers(1, 45),
    min_p=st.floats(0, 0.5),
    top_p=st.floats(0, 1, exclude_min=True),
)
@settings(derandomize=True, deadline=None)
def test_top_p_is_a_share_of_what_top_k_and_min_p_leave(
    logits: list[float], temperature: float, top_k: int, min_p: float, top_p: float
) -> None:
    left = kept(logits, temperature=temperature, top_k=top_k, min_p=min_p)
    chances = dict(enumerate(probabilities(logits, temperature)))
    ranked = [i for i in ranking(logits) if i in left]
    kept_ids = kept(logits, temperature=temperature, top_k=top_k, min_p=min_p, top_p=top_p)
    check_smallest_set(kept_ids, ranked, chances, top_p)


def test_top_p_over_a_flat_vocabulary_keeps_its_share_of_the_tokens() -> None:
    assert kept([0.0] * 1000, temperature=1.0, top_p=0.25) == list(range(250))
    slope = np.linspace(0, -30, 1000).tolist()  # reaches into tokens less likely than every floor of the first tries
    check_smallest_set(
        kept(slope, temperature=2.0, top_p=1 - 1e-7),
        ranking(slope),
        dict(enumerate(probabilities(slope, 2.0))),
        1 - 1e-7,
    )


def test_a_temperature_or_top_p_close_to_zero_is_greedy() -> None:
    logits = row(1, 2, 1.9999, 2)
    for seed in range(20):
        assert sample_one(logits, request(seed=seed, temperature=TINY, top_k=1)).token_id == 1
        assert sample_one(logits, request(seed=seed, temperature=TINY)).token_id in (1, 3)
        assert sample_one(logits, request(seed=seed, temperature=2.0, top_p=TINY)).token_id == 1
        assert sample_one(logits, request(seed=seed, temperature=2.0, min_p=1.0)).token_id in (1, 3)


@given(values=LOGITS, count=st.integers(0, 45))
@settings(derandomize=True, deadline=None)
def test_rank_and_largest_agree_with_sorting(values: list[float], count: int) -> None:
    assert rank(row(*values), count).tolist() == ranking(values)[:count]
    if count:
        assert sorted(largest(row(*values), count).tolist()) == sorted(ranking(values)[:count])


# Draws


def test_splitmix64_gives_its_published_sequence() -> None:
    outputs = [splitmix64(1234567, step) for step in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_uniform_takes_any_seed_and_is_at_least_zero_and_below_one() -> None:
    for seed in (-(2**63), -1, 0, 1, 2**64 - 1):
        assert 0 <= uniform(seed, 0) < 1
        assert uniform(seed, 5) == uniform(seed, 5) != uniform(seed, 6)


def test_draw_finds_where_the_number_falls_and_skips_weight_zero() -> None:
    weights = np.array([0.0, 1.0, 0.0, 3.0, 0.0])
    assert [draw(weights, number) for number in (0.0, 0.2499, 0.25, 0.9, 1 - 2**-53, 1.0)] == [1, 1, 3, 3, 3, 3]


def chi_square_is_plausible(counts: Sequence[int], chances: Sequence[float]) -> bool:
    """Below what a fair draw exceeds once in a thousand times (Wilson and Hilferty's approximation)."""
    expected = np.array(chances) * sum(counts)
    assert expected.min() > 5
    statistic, freedom = float(np.sum((np.array(counts) - expected) ** 2 / expected)), len(counts) - 1
    return statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize("vary", ["seed", "position"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temperature": 1.0}, [0.1, 0.2, 0.4, 0.3]),
        ({"temperature": 0.5}, [0.01 / 0.3, 0.04 / 0.3, 0.16 / 0.3, 0.09 / 0.3]),
        ({"temperature": 1.0, "top_k": 2}, [0, 0, 4 / 7, 3 / 7]),
        ({"temperature": 1.0, "top_p": 0.8}, [0, 2 / 9, 4 / 9, 3 / 9]),
        ({"temperature": 1.0, "min_p": 0.6}, [0, 0, 4 / 7, 3 / 7]),
        ({"temperature": 1.0, "banned": (2,)}, [1 / 6, 2 / 6, 0, 3 / 6]),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(options: dict[str, float], expected: list[float], vary: str) -> None:
    logits = np.log(row(0.1, 0.2, 0.4, 0.3)) + 7
    counts = [0, 0, 0, 0]
    for n in range(2000):
        where = {"seed": n} if vary == "seed" else {"seed": 99, "prompt": range(n + 1), "num_computed_tokens": n}
        counts[sample_one(logits, request(**where, **options)).token_id] += 1
    assert [c for c, e in zip(counts, expected, strict=True) if e == 0] == [0] * expected.count(0)
    possible = [i for i, e in enumerate(expected) if e > 0]
    assert chi_square_is_plausible([counts[i] for i in possible], [expected[i] for i in possible])


@pytest.mark.parametrize("neighbour", [(0, 1), (1, 0), (1, 1)], ids=["next position", "next seed", "diagonal"])
def test_draws_at_neighbouring_seeds_and_positions_are_independent(neighbour: tuple[int, int]) -> None:
    counts = np.zeros((8, 8), dtype=int)
    for seed in range(0, 200, 2):  # every other one: a draw in two pairs would count twice
        for position in range(0, 200, 2):
            beside = uniform(seed + neighbour[0], position + neighbour[1])
            counts[int(uniform(seed, position) * 8), int(beside * 8)] += 1
    assert chi_square_is_plausible(counts.ravel().tolist(), [1 / 64] * 64)


def test_a_draw_does_not_depend_on_the_batch_or_the_order_of_rows() -> None:
    logits = np.random.default_rng(0).standard_normal((8, 50), dtype=np.float32)
    requests = [request(request_id=n, seed=n, temperature=1.0 + n / 10, top_p=0.95) for n in range(8)]
    alone = [sample_one(logits[n], requests[n]) for n in range(8)]
    assert len({token.token_id for token in alone}) > 2
    assert sample(logits, requests) == alone
    assert sample(logits[::-1], requests[::-1]) == alone[::-1]


def test_a_draw_after_preemption_is_the_same() -> None:
    logits = np.random.default_rng(1).standard_normal(50, dtype=np.float32)
    for seed in range(20):
        options = {"prompt": (3, 4), "output": (5, 6, 7), "temperature": 1.5, "presence_penalty": 1.0, "seed": seed}
        resumed = request(num_computed_tokens=0, **options)  # recomputes prompt and output in one step
        assert sample_one(logits, resumed) == sample_one(logits, request(**options))
