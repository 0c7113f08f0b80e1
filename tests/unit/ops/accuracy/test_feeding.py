"""Whatever the way, each row is measured once, after all that comes before it."""

from __future__ import annotations

from collections import Counter

import pytest

from ullage.ops.accuracy.feeding import Feeding, Part, batch, one_row, prefill
from ullage.ops.accuracy.pieces import Pieces

PIECES = Pieces((tuple(range(10)), tuple(range(10)), tuple(range(3))), 30)
FEEDINGS = [one_row(PIECES), prefill(PIECES, 4), batch(PIECES, 5, 4), batch(PIECES, 1, 4), batch(PIECES, 23, 3)]


@pytest.mark.parametrize("feeding", FEEDINGS, ids=lambda feeding: feeding.name)
def test_each_row_is_measured_once_and_sees_its_whole_piece(feeding: Feeding):
    measured: Counter[tuple[int, int]] = Counter()
    filled: dict[int, tuple[int, int]] = {}  # sequence -> piece, and how much of it is there
    for step in feeding.steps:
        assert len({part.sequence for part in step}) == len(step)
        for part in step:
            if part.start:
                assert filled[part.sequence] == (part.piece, part.start)
            filled[part.sequence] = (part.piece, part.stop)
            measured.update((part.piece, position) for position in range(part.start, part.stop) if part.measured)
    assert measured == {(i, position): 1 for i, piece in enumerate(PIECES.token_ids) for position in range(len(piece))}


def test_one_row_runs_a_row_a_step():
    assert (one_row(PIECES).num_sequences, one_row(PIECES).most_rows) == (1, 1)
    assert len(one_row(PIECES).steps) == 23


def test_prefill_cuts_pieces_in_chunks():
    feeding = prefill(PIECES, 4)
    assert [part.num_rows for (part,) in feeding.steps] == [4, 4, 2, 4, 4, 2, 3]
    assert (feeding.num_sequences, feeding.most_rows, feeding.most_measured_rows) == (1, 4, 4)


def test_a_batch_is_full_and_its_sequences_stand_at_different_positions():
    feeding = batch(PIECES, 5, 4)
    decoding = [step for step in feeding.steps if step[0].measured]
    assert [len(step) for step in decoding] == [5, 5, 5, 5, 3]  # 23 rows
    assert decoding[0] == tuple(
        Part(sequence, piece, position, position + 1, measured=True)
        for sequence, (piece, position) in enumerate([(0, 0), (0, 4), (0, 9), (1, 3), (1, 8)])
    )
    assert (feeding.num_sequences, feeding.most_rows, feeding.most_measured_rows) == (5, 5, 5)


def test_what_comes_before_a_run_is_read_in_chunks_and_not_measured():
    prompts = [part for step in batch(PIECES, 5, 4).steps for part in step if not part.measured]
    assert [(part.sequence, part.start, part.stop) for part in prompts] == [
        (1, 0, 4),
        (2, 0, 4),
        (2, 4, 8),
        (2, 8, 9),
        (3, 0, 3),
        (4, 0, 4),
        (4, 4, 8),
    ]
