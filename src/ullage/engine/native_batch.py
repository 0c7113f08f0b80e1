"""Requests of a step as the arrays of one native call, and what came of it as tokens.

This is Python's share of each step. Lists grow by whole requests and become arrays once: a numpy call for each request
would cost more than all the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ullage.base.errors import EngineError
from ullage.engine.step import SampledToken, ScheduledRequest
from ullage.kernels.sampling import PLAIN_GREEDY, SamplingBatch

IntArray = NDArray[np.int32]

MAX_TOP_K = 2**31 - 1


class DecoderArrays(NamedTuple):
    """What ``NativeDecoder.step`` runs, in its order."""

    token_ids: IntArray
    positions: IntArray
    seq_starts: IntArray
    block_tables: IntArray
    table_starts: IntArray
    logit_rows: IntArray


def decoder_arrays(requests: Sequence[ScheduledRequest]) -> DecoderArrays:
    token_ids: list[int] = []
    positions: list[int] = []
    seq_starts = [0]
    block_tables: list[int] = []
    table_starts: list[int] = []
    logit_rows: list[int] = []
    for request in requests:
        token_ids += request.token_ids
        end = len(token_ids)
        if end - seq_starts[-1] == 1:
            positions.append(request.num_computed_tokens)
        else:
            positions += range(request.num_computed_tokens, request.num_computed_tokens + end - seq_starts[-1])
        seq_starts.append(end)
        if request.needs_logits:
            logit_rows.append(end - 1)
    for tables_of_group in zip(*(request.block_tables for request in requests), strict=True):
        for table in tables_of_group:
            table_starts.append(len(block_tables))
            block_tables += table
    lists = (token_ids, positions, seq_starts, block_tables, table_starts, logit_rows)
    numbers = np.array([*chain.from_iterable(lists)], np.int32)  # one array and views of it: half the time of six
    ends = [*accumulate(map(len, lists))]
    return DecoderArrays(*(numbers[end - len(part) : end] for part, end in zip(lists, ends, strict=True)))


class SamplingBatches:
    """How the requests' tokens are chosen, step by step. Plain greedy batches are made once."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._plain_greedy: dict[int, SamplingBatch] = {}
        """By the number of rows, of which there are no more than sequences in a step."""

    def of(self, requests: Sequence[ScheduledRequest]) -> SamplingBatch:
        """
        :param requests: those with ``needs_logits``
        :raises EngineError: an id to bias or to ban is not in the vocabulary
        """
        if all(map(_is_plain_greedy, requests)):
            if len(requests) not in self._plain_greedy:
                self._plain_greedy[len(requests)] = SamplingBatch.of([PLAIN_GREEDY] * len(requests))
            return self._plain_greedy[len(requests)]
        token_ids: list[int] = []
        bias_values: list[float] = []
        masks: list[bytes] = []
        rows = [
            PLAIN_GREEDY
            if _is_plain_greedy(request)
            else _sampling_row(request, self._vocab_size, token_ids, bias_values, masks)
            for request in requests
        ]
        return SamplingBatch.of(rows, token_ids, bias_values, masks)


def _is_plain_greedy(request: ScheduledRequest) -> bool:
    params = request.sampling
    return (
        params.temperature == 0.0
        and params.logprobs is None
        and request.token_mask is None
        and not (request.banned_token_ids or params.logit_bias or params.has_penalties)
    )


def _sampling_row(
    request: ScheduledRequest, vocab_size: int, token_ids: list[int], bias_values: list[float], masks: list[bytes]
) -> tuple[float, ...]:
    params = request.sampling
    history_start = len(token_ids)
    output_start = _add_history(request, token_ids)
    bias_start, bias_values_start = len(token_ids), len(bias_values)
    if params.logit_bias:
        token_ids += _checked_ids(request, tuple(params.logit_bias), vocab_size)
        bias_values += params.logit_bias.values()
    banned_start = len(token_ids)
    if request.banned_token_ids:
        token_ids += _checked_ids(request, request.banned_token_ids, vocab_size)
    mask_index = -1 if request.token_mask is None else len(masks)
    if request.token_mask is not None:
        masks.append(_checked_mask(request, request.token_mask, vocab_size))
    return (
        params.temperature,
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.frequency_penalty,
        params.presence_penalty,
        request.seed & (2**64 - 1),
        request.num_computed_tokens + len(request.token_ids),
        min(params.top_k, MAX_TOP_K),
        -1 if params.logprobs is None else params.logprobs,
        history_start,
        output_start,
        bias_start,
        banned_start,
        len(token_ids),
        bias_values_start,
        mask_index,
        0,
    )


def _add_history(request: ScheduledRequest, token_ids: list[int]) -> int:
    """Adds what the penalties count: the prompt only for the repetition penalty.

    :returns: where the output starts
    """
    params = request.sampling
    output_start = len(token_ids)
    if params.repetition_penalty != 1.0:
        token_ids += request.history
        return min(output_start + request.num_prompt_tokens, len(token_ids))
    if params.has_penalties:
        token_ids += request.history[request.num_prompt_tokens :]
    return output_start


def _checked_ids(request: ScheduledRequest, token_ids: Sequence[int], vocab_size: int) -> Sequence[int]:
    if not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        raise EngineError(f"request {request.request_id}: token ids must be 0..{vocab_size - 1}, got {list(token_ids)}")
    return token_ids


def _checked_mask(request: ScheduledRequest, mask: bytes, vocab_size: int) -> bytes:
    if len(mask) != -(-vocab_size // 32) * 4:
        raise EngineError(f"request {request.request_id}: a mask of {len(mask)} bytes for {vocab_size} tokens")
    return mask


def sampled_tokens(requests: Sequence[ScheduledRequest], sampled: NDArray[Any]) -> list[SampledToken]:
    """:param sampled: [requests] of ``SAMPLED_ROW``"""
    token_ids = sampled["token_id"].tolist()
    assert len(token_ids) == len(requests)
    return [
        SampledToken(request.request_id, token_ids[i])
        if token_ids[i] >= 0 and request.sampling.logprobs is None
        else _token_of(request.request_id, *sampled[i].item())
        for i, request in enumerate(requests)
    ]


def _token_of(
    request_id: int,
    token_id: int,
    best: float,
    logprob: float,
    num_top: int,
    top_ids: NDArray[np.int32],
    top_logprobs: NDArray[np.float32],
) -> SampledToken:
    """With log-probabilities, or without a token."""
    if token_id < 0:
        return SampledToken(request_id, None, error=f"no token can be chosen: the largest logit is {best}")
    top = zip(top_ids[:num_top].tolist(), top_logprobs[:num_top].tolist(), strict=True)
    return SampledToken(request_id, token_id, logprob, tuple(top))
