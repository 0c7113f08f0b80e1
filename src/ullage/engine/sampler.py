"""Chooses the next token of each request from its logits.

The order is vLLM's::

    logits ─▶ logit bias ─▶ repetition, frequency, presence penalty ─▶ bans, mask ─▶ greedy: the largest
                                        └─▶ temperature ─▶ top-k, min-p ─▶ top-p ─▶ one draw

Log-probabilities are those of the logits as the model computed them, before all of this.

A draw depends on the logits, the request's seed and the token's position, and on nothing else: not on the other
requests of the step, nor on how often the request was preempted. Equal values rank by token id, the lowest first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from ullage.base.errors import EngineError
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import SampledToken, ScheduledRequest
from ullage.kernels.reference import log_softmax

Logits = NDArray[np.float32]
TokenIds = NDArray[np.int64]
Weights = NDArray[np.float64]

NUCLEUS_FLOORS = (1e-2, 1e-4, 0.0)
"""Top-p first tries the tokens this likely, relative to the best: sorting a whole vocabulary is what costs most."""


def sample(logits: Logits, requests: Sequence[ScheduledRequest]) -> list[SampledToken]:
    """One token for each row.

    :param logits: [rows, vocab]; not changed
    :param requests: the request of each row
    :returns: an answer without a token for a row that holds NaN or infinity, or where no token is left to choose
    :raises EngineError: an id to bias or to ban is not in the vocabulary
    """
    assert len(logits) == len(requests)
    if all(_is_plain_greedy(request) for request in requests):
        token_ids = logits.argmax(axis=1)  # NaN counts as the largest, so that it shows
        best = logits[np.arange(len(logits)), token_ids]
        return [
            SampledToken(request.request_id, int(token_id)) if np.isfinite(value) else _no_token(request, value)
            for request, token_id, value in zip(requests, token_ids, best, strict=True)
        ]
    return [_sample_row(row, request) for row, request in zip(logits, requests, strict=True)]


def _is_plain_greedy(request: ScheduledRequest) -> bool:
    return request.sampling.greedy and request.sampling.logprobs is None and not _changes_logits(request)


def _changes_logits(request: ScheduledRequest) -> bool:
    return bool(
        request.sampling.has_penalties
        or request.sampling.logit_bias
        or request.banned_token_ids
        or request.token_mask is not None
    )


def _no_token(request: ScheduledRequest, best: np.float32) -> SampledToken:
    return SampledToken(request.request_id, None, error=f"no token can be chosen: the largest logit is {best}")


def _sample_row(row: Logits, request: ScheduledRequest) -> SampledToken:
    params = request.sampling
    adjusted = adjust_logits(row, request) if np.isfinite(row.max()) and _changes_logits(request) else row
    token_id = int(adjusted.argmax())
    if not np.isfinite(adjusted[token_id]):
        return _no_token(request, adjusted[token_id])
    if not params.greedy:
        position = request.num_computed_tokens + len(request.token_ids)
        token_ids, weights = keep_likely(adjusted, params)
        token_id = int(token_ids[draw(weights, uniform(request.seed, position))])
    if params.logprobs is None:
        return SampledToken(request.request_id, token_id)
    logprobs = log_softmax(row)
    best = tuple((int(i), float(logprobs[i])) for i in rank(logprobs, params.logprobs))
    return SampledToken(request.request_id, token_id, float(logprobs[token_id]), best)


def adjust_logits(row: Logits, request: ScheduledRequest) -> Logits:
    """Bias, penalties, bans and the mask of a constraint.

    :param row: [vocab]; not changed
    :returns: [vocab]
    :raises EngineError: an id to bias or to ban is not in the vocabulary, or the mask has another size
    """
    params, row = request.sampling, row.copy()
    row[_checked_ids(params.logit_bias, row.size, request)] += np.fromiter(params.logit_bias.values(), np.float32)
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.asarray(request.history, dtype=np.int64))
        values, penalty, limit = row[seen].astype(np.float64), params.repetition_penalty, np.finfo(np.float32).max
        with np.errstate(over="ignore"):  # a penalty near 0 is allowed
            row[seen] = np.where(values > 0, values / penalty, values * penalty).clip(-limit, limit)
    if params.frequency_penalty or params.presence_penalty:
        output = np.asarray(request.history[request.num_prompt_tokens :], dtype=np.int64)
        seen, counts = np.unique(output, return_counts=True)
        row[seen] -= params.frequency_penalty * counts + params.presence_penalty
    row[_checked_ids(request.banned_token_ids, row.size, request)] = -np.inf
    if request.token_mask is not None:
        row[~_allowed(request.token_mask, row.size, request)] = -np.inf
    return row


def _allowed(mask: bytes, vocab_size: int, request: ScheduledRequest) -> NDArray[np.bool_]:
    if len(mask) != -(-vocab_size // 32) * 4:
        raise EngineError(f"request {request.request_id}: a mask of {len(mask)} bytes for {vocab_size} tokens")
    return np.unpackbits(np.frombuffer(mask, np.uint8), count=vocab_size, bitorder="little").astype(np.bool_)


def _checked_ids(token_ids: Collection[int], vocab_size: int, request: ScheduledRequest) -> TokenIds:
    ids = np.fromiter(token_ids, np.int64)
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise EngineError(f"request {request.request_id}: token ids must be 0..{vocab_size - 1}, got {list(ids)}")
    return ids


def keep_likely(row: Logits, params: SamplingParams) -> tuple[TokenIds, Weights]:
    """Temperature, top-k, min-p, then top-p of what is left.

    Top-k and min-p both keep a prefix of the ranking, so their order doesn't matter; top-p is a share of the
    probability that they leave. At least one token stays.

    :param row: [vocab], temperature above 0
    :returns: the tokens that stay, by ascending id, and weights proportional to their probability (the best has 1)
    """
    token_ids = np.arange(row.size)
    if 0 < params.top_k < row.size:
        token_ids = np.sort(largest(row, params.top_k))
    with np.errstate(over="ignore"):  # a temperature near 0 makes all but the best minus infinity, as it should
        weights = np.exp((row[token_ids].astype(np.float64) - row.max()) / params.temperature)
    if params.min_p > 0:
        likely = weights >= params.min_p
        token_ids, weights = token_ids[likely], weights[likely]
    if params.top_p < 1:
        nucleus = np.sort(_nucleus(weights, params.top_p))
        token_ids, weights = token_ids[nucleus], weights[nucleus]
    return token_ids, weights


def _nucleus(weights: Weights, share: float) -> TokenIds:
    """Indices of the smallest set of largest weights that holds ``share`` of the total. Source: arXiv:1904.09751.

    :param weights: the largest is 1
    """
    goal = share * weights.sum()
    for floor in NUCLEUS_FLOORS:
        likely = np.flatnonzero(weights >= floor)
        if weights[likely].sum() >= goal:
            break
    ranked = likely[np.argsort(-weights[likely], kind="stable")]
    return ranked[: np.searchsorted(np.cumsum(weights[ranked]), goal) + 1]


def largest(values: NDArray[np.floating], count: int) -> TokenIds:
    """Indices of the ``count`` largest values (all, if there are fewer), in any order and linear time."""
    if count >= values.size:
        return np.arange(values.size)
    threshold = np.partition(values, -count)[-count]
    above = np.flatnonzero(values > threshold)
    return np.concatenate((above, np.flatnonzero(values == threshold)[: count - above.size]))


def rank(values: NDArray[np.floating], count: int) -> TokenIds:
    """Indices of the ``count`` largest values, best first."""
    if count == 0:
        return np.empty(0, dtype=np.int64)
    best = largest(values, count)
    return best[np.lexsort((best, -values[best]))]


def draw(weights: Weights, number: float) -> int:
    """Index drawn with probability proportional to its weight: where ``number`` in [0, 1) falls on their sums.

    An index of weight 0 is never drawn.
    """
    sums = np.cumsum(weights)
    index = np.searchsorted(sums, number * sums[-1], side="right")
    last = np.searchsorted(sums, sums[-1])  # where rounding would end past the last positive weight
    return int(min(index, last))


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that belongs to a seed and a token position: a counter-based generator without state.

    SplitMix64, seeded by its own output, at its ``position``-th step. Source: Steele, Lea, Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014.
    """
    return (splitmix64(splitmix64(seed, 0), position) >> 11) * 2.0**-53


def splitmix64(state: int, step: int) -> int:
    """SplitMix64's output at ``step`` from ``state``: 64 bits in, 64 bits out."""
    mask = 2**64 - 1
    z = (state + (step + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)
