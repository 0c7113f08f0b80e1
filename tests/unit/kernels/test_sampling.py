"""The structs that Python and C++ share, and what the door to C++ refuses."""

from __future__ import annotations

import numpy as np
import pytest

from ullage.base.errors import EngineError
from ullage.kernels.native import native_isas, sample_logits
from ullage.kernels.sampling import NO_MASKS, PLAIN_GREEDY, SAMPLED_ROW, SAMPLING_ROW, SamplingBatch, as_bytes

LOGITS = np.array([[0.0, 2.0, 1.0]], np.float32)


def row(**changes: float) -> tuple[float, ...]:
    names = SAMPLING_ROW.names or ()
    assert set(changes) <= set(names)
    return tuple(changes.get(name, value) for name, value in zip(names, PLAIN_GREEDY, strict=True))


def sampled(batch: SamplingBatch) -> list[int]:
    return sample_logits(LOGITS, batch, native_isas()[0])["token_id"].tolist()


def test_a_plain_greedy_row_takes_the_largest() -> None:
    assert sampled(SamplingBatch.of([PLAIN_GREEDY])) == [1]


def test_structs_have_no_padding() -> None:
    assert as_bytes(np.zeros(2, SAMPLING_ROW)).shape == (2, 104)
    assert as_bytes(np.zeros(0, SAMPLED_ROW)).shape == (0, 176)


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": -1.0},
        {"temperature": np.nan},
        {"temperature": np.inf},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": np.nan},
        {"top_k": -1},
        {"num_logprobs": 21},
        {"num_logprobs": -2},
    ],
    ids=str,
)
def test_parameters_out_of_range_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(EngineError, match="a sampling parameter is out of range"):
        sampled(SamplingBatch.of([row(**changes)]))


@pytest.mark.parametrize(
    "changes", [{"repetition_penalty": 0.0}, {"frequency_penalty": np.inf}, {"presence_penalty": np.nan}], ids=str
)
def test_penalties_out_of_range_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(EngineError, match="a penalty is out of range"):
        sampled(SamplingBatch.of([row(**changes)]))


@pytest.mark.parametrize(
    "starts", [(-1, 0, 0, 0, 0), (1, 0, 2, 2, 2), (0, 2, 1, 2, 2), (0, 0, 2, 1, 2), (0, 0, 0, 2, 1), (0, 0, 3, 3, 3)]
)
def test_lists_that_lie_outside_their_array_are_refused(starts: tuple[int, ...]) -> None:
    names = ("history_start", "output_start", "bias_start", "banned_start", "end")
    with pytest.raises(EngineError, match="lie outside their array"):
        sampled(SamplingBatch.of([row(**dict(zip(names, starts, strict=True)))], [0, 1]))


@pytest.mark.parametrize("start", [-1, 1])
def test_biases_that_lie_outside_their_array_are_refused(start: int) -> None:
    with pytest.raises(EngineError, match="biases of a sampled row lie outside"):
        sampled(SamplingBatch.of([row(banned_start=1, end=1, bias_values_start=start)], [0], [1.0]))


@pytest.mark.parametrize("index", [-2, 1])
def test_a_mask_that_lies_outside_its_array_is_refused(index: int) -> None:
    with pytest.raises(EngineError, match="the mask of a sampled row lies outside"):
        sampled(SamplingBatch.of([row(mask_index=index)], masks=[bytes(4)]))


def test_a_mask_of_another_size_is_refused() -> None:
    with pytest.raises(EngineError, match="a mask of another size"):
        sampled(SamplingBatch.of([row(mask_index=0)], masks=[bytes(8)]))


def test_a_mask_leaves_what_it_allows() -> None:
    masks = [bytes([0b101, 0, 0, 0]), bytes([0b001, 0, 0, 0]), bytes(4)]
    assert sampled(SamplingBatch.of([row(mask_index=0)], masks=masks)) == [2]
    assert sampled(SamplingBatch.of([row(mask_index=1)], masks=masks)) == [0]
    assert sampled(SamplingBatch.of([row(mask_index=2)], masks=masks)) == [-1]


@pytest.mark.parametrize("token_id", [-1, 3])
def test_ids_outside_the_vocabulary_are_refused(token_id: int) -> None:
    with pytest.raises(EngineError, match="token id out of range"):
        sampled(SamplingBatch.of([row(end=1)], [token_id]))


def test_as_many_rows_are_sampled_as_there_are_logits() -> None:
    with pytest.raises(EngineError, match="not as many rows to sample as logits"):
        sampled(SamplingBatch.of([PLAIN_GREEDY] * 2))


def test_rows_of_another_layout_are_refused() -> None:
    rows = np.zeros(1, np.dtype([("temperature", np.float64)]))
    other = SamplingBatch(rows, as_bytes(rows), np.zeros(0, np.int32), LOGITS[0, :0], NO_MASKS)
    with pytest.raises(EngineError, match="sampling rows of another size"):
        sampled(other)
