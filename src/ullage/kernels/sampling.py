"""What the C++ sampler reads and writes, in numpy: the structs of ``native/sampling_batch.h``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_LOGPROBS = 20  # kMaxLogprobs in native/sampling_batch.h

SAMPLING_ROW = np.dtype(
    [
        ("temperature", np.float64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("repetition_penalty", np.float64),
        ("frequency_penalty", np.float64),
        ("presence_penalty", np.float64),
        ("seed", np.uint64),
        ("position", np.int64),
        ("top_k", np.int32),
        ("num_logprobs", np.int32),
        ("history_start", np.int32),
        ("output_start", np.int32),
        ("bias_start", np.int32),
        ("banned_start", np.int32),
        ("end", np.int32),
        ("bias_values_start", np.int32),
        ("mask_index", np.int32),
        ("padding", np.int32),
    ]
)
"""How the token of one row is chosen."""

SAMPLED_ROW = np.dtype(
    [
        ("token_id", np.int32),
        ("best", np.float32),
        ("logprob", np.float32),
        ("num_top", np.int32),
        ("top_ids", np.int32, MAX_LOGPROBS),
        ("top_logprobs", np.float32, MAX_LOGPROBS),
    ]
)
"""``token_id`` is -1 where none can be chosen: ``best``, the largest logit, is then NaN or infinite. ``num_top`` of the
best tokens are given, best first."""

PLAIN_GREEDY = (0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, -1, 0)
"""A ``SAMPLING_ROW`` that takes the largest logit."""

NO_MASKS = np.zeros((0, 0), np.uint32)


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How the rows of one step are sampled.

    :param rows: [rows] of ``SAMPLING_ROW``
    :param row_bytes: the same as bytes
    :param token_ids: what the rows' starts point into: histories, ids to bias, ids to ban. int32
    :param bias_values: one for each id to bias. float32
    :param masks: what the rows' ``mask_index`` points into: [masks, vocab / 32 rounded up], a bit for each token.
        uint32
    """

    rows: NDArray[Any]
    row_bytes: NDArray[np.uint8]
    token_ids: NDArray[np.int32]
    bias_values: NDArray[np.float32]
    masks: NDArray[np.uint32]

    @staticmethod
    def of(
        rows: Sequence[tuple[float, ...]],
        token_ids: Sequence[int] = (),
        bias_values: Sequence[float] = (),
        masks: Sequence[bytes] = (),
    ) -> SamplingBatch:
        """
        :param rows: fields in the order of ``SAMPLING_ROW``
        :param masks: all of the same size
        """
        records = np.array(rows, SAMPLING_ROW)
        return SamplingBatch(
            records,
            as_bytes(records),
            np.asarray(token_ids, np.int32),
            np.asarray(bias_values, np.float32),
            np.frombuffer(b"".join(masks), np.uint32).reshape(len(masks), -1) if masks else NO_MASKS,
        )


def as_bytes(records: NDArray[Any]) -> NDArray[np.uint8]:
    """A view [rows, bytes of a row] of a structured array: the door to C++ checks the size against its struct."""
    return records.view(np.uint8).reshape(len(records), records.itemsize)
