"""Requests of a step as the arrays of one native call, and what came of it as tokens.

This is Python's share of each step. Lists grow by whole requests and become arrays once: a numpy call for each request
would cost more than all the rest.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullage.base.errors import EngineError
from ullage.engine.step import SampledToken, ScheduledRequest
from ullage.kernels.sampling import PLAIN_GREEDY, SAMPLING_ROW, SamplingBatch

IntArray = NDArray[np.int32]

MAX_TOP_K = 2**31 - 1


def decoder_arrays(requests: Sequence[ScheduledRequest]) -> tuple[IntArray, ...]:
    """The arrays of ``NativeDecoder.step`` that say what to run, in its order."""
    token_ids, positions, seq_starts = array("i"), array("i"), array("i", (0,))
    block_tables, table_starts, logit_rows = array("i"), array("i"), array("i")
    end = 0
    for request in requests:
        start = request.num_computed_tokens
        length = len(request.token_ids)
        end += length
        token_ids.extend(request.token_ids)
        positions.extend(range(start, start + length))
        seq_starts.append(end)
        table_starts.append(len(block_tables))
        block_tables.extend(request.block_ids)
        if request.needs_logits:
            logit_rows.append(end - 1)
    arrays = (token_ids, positions, seq_starts, block_tables, table_starts, logit_rows)
    return tuple(np.asarray(numbers) for numbers in arrays)


def sampling_batch(requests: Sequence[ScheduledRequest], vocab_size: int) -> SamplingBatch:
    """How the requests' tokens are chosen.

    :param requests: those with ``needs_logits``
    :raises EngineError: an id to bias or to ban is not in the vocabulary
    """
    token_ids, bias_values = array("i"), array("f")
    rows = [
        PLAIN_GREEDY if _is_plain_greedy(request) else _sampling_row(request, vocab_size, token_ids, bias_values)
        for request in requests
    ]
    return SamplingBatch(np.array(rows, SAMPLING_ROW), np.asarray(token_ids), np.asarray(bias_values))


def _is_plain_greedy(request: ScheduledRequest) -> bool:
    params = request.sampling
    return (
        params.temperature == 0.0
        and params.logprobs is None
        and not (request.banned_token_ids or params.logit_bias or params.has_penalties)
    )


def _sampling_row(
    request: ScheduledRequest, vocab_size: int, token_ids: array[int], bias_values: array[float]
) -> tuple[float, ...]:
    params = request.sampling
    history_start = len(token_ids)
    output_start = _add_history(request, token_ids)
    bias_start, bias_values_start = len(token_ids), len(bias_values)
    if params.logit_bias:
        token_ids.extend(_checked_ids(request, tuple(params.logit_bias), vocab_size))
        bias_values.extend(params.logit_bias.values())
    banned_start = len(token_ids)
    if request.banned_token_ids:
        token_ids.extend(_checked_ids(request, request.banned_token_ids, vocab_size))
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
    )


def _add_history(request: ScheduledRequest, token_ids: array[int]) -> int:
    """Adds what the penalties count: the prompt only for the repetition penalty.

    :returns: where the output starts
    """
    params = request.sampling
    output_start = len(token_ids)
    if params.repetition_penalty != 1.0:
        token_ids.extend(request.history)
        return min(output_start + request.num_prompt_tokens, len(token_ids))
    if params.has_penalties:
        token_ids.extend(request.history[request.num_prompt_tokens :])
    return output_start


def _checked_ids(request: ScheduledRequest, token_ids: Sequence[int], vocab_size: int) -> Sequence[int]:
    if not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        raise EngineError(
            f"request {request.request_id}: token ids must be 0..{vocab_size - 1}, got {list(token_ids)}"
        )
    return token_ids


def sampled_tokens(requests: Sequence[ScheduledRequest], sampled: NDArray[Any]) -> list[SampledToken]:
    """:param sampled: [requests] of ``SAMPLED_ROW``"""
    tokens = [
        SampledToken(request.request_id, token_id)
        for request, token_id in zip(requests, sampled["token_id"].tolist(), strict=True)
    ]
    for i, request in enumerate(requests):
        if tokens[i].token_id == -1:
            tokens[i] = _no_token(request.request_id, float(sampled["best"][i]))
        elif request.sampling.logprobs is not None:
            tokens[i] = _with_logprobs(request.request_id, sampled[i])
    return tokens


def _no_token(request_id: int, best: float) -> SampledToken:
    return SampledToken(request_id, None, error=f"no token can be chosen: the largest logit is {best}")


def _with_logprobs(request_id: int, row: Any) -> SampledToken:
    token_id, _, logprob, num_top, top_ids, top_logprobs = row.item()
    best = zip(top_ids[:num_top].tolist(), top_logprobs[:num_top].tolist(), strict=True)
    return SampledToken(request_id, token_id, logprob, tuple(best))
