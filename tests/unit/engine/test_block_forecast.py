from __future__ import annotations

from ullage.engine.block_forecast import most_blocks
from ullage.plan.block_demand import BlockDemand


def test_nothing_needs_nothing():
    assert most_blocks(BlockDemand(4), []) == 0


def test_one_needs_all_that_it_becomes():
    assert most_blocks(BlockDemand(4), [(5, 8)]) == 4


def test_who_ends_first_is_gone_when_the_others_are_long():
    """Of 40 + 10 and 10 + 40 tokens both hold 50 in the end, but never at once: 20 + 50 when the second ends."""
    assert most_blocks(BlockDemand(1), [(40, 10), (10, 40)]) == 70
    assert most_blocks(BlockDemand(1), [(40, 10), (40, 40)]) == 130


def test_a_window_bounds_what_a_long_one_holds():
    demand = BlockDemand(4, (None, 8), max_step_tokens=1)
    assert most_blocks(demand, [(100, 100)]) == demand.num_blocks(200) < 2 * 50
