from __future__ import annotations

import pytest

from ullage.plan.block_demand import BlockDemand


def seen_blocks(window: int, first: int, num_tokens: int, block_size: int) -> set[int]:
    """Blocks that a step of ``num_tokens`` from position ``first`` on reads or writes, counted one by one."""
    return {p // block_size for p in range(max(0, first + 1 - window), first + num_tokens)}


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("window", [1, 2, 5, 16, 17])
@pytest.mark.parametrize("step", [1, 4, 7, 32])
def test_a_table_holds_what_any_step_reads_or_writes_and_no_step_touches_more_than_the_most(block_size, window, step):
    demand = BlockDemand(block_size, (window,), step)
    num_tokens, most = 200, 0
    for first in range(num_tokens):
        blocks = seen_blocks(window, first, min(step, num_tokens - first), block_size)
        held = range(demand.first_block(window, first), demand.table_length(window, first, num_tokens))
        assert blocks <= set(held)
        assert len(held) <= demand.num_blocks(num_tokens)
        most = max(most, len(blocks))
    assert most == demand.num_blocks(num_tokens)  # not one block too many


def test_without_a_window_a_request_holds_all_its_blocks_from_the_start():
    demand = BlockDemand(4)
    assert [demand.num_blocks(n) for n in (1, 4, 5, 400)] == [1, 1, 2, 100]
    assert demand.first_block(None, 399) == 0
    assert demand.table_length(None, 0, 399) == 100


def test_groups_add_up():
    demand = BlockDemand(4, (None, 8, 8), max_step_tokens=4)  # 11 tokens touch four blocks at most
    assert [demand.num_blocks(n) for n in (4, 16, 17, 40)] == [3, 12, 5 + 4 + 4, 10 + 4 + 4]


def test_what_is_not_to_be_computed_takes_no_blocks():
    demand = BlockDemand(4, (8,), max_step_tokens=100)
    assert demand.table_length(8, 19, 20) == 5
    assert demand.first_block(8, 19) == 3  # positions 12 to 19 are seen


@pytest.mark.parametrize("windows", [(None,), (None, 8, 8), (8,), (None, None, 1)])
@pytest.mark.parametrize("num_blocks", [0, 1, 2, 3, 7, 12, 13, 14, 50])
def test_the_largest_request_is_the_largest(windows, num_blocks):
    demand = BlockDemand(4, windows, max_step_tokens=4)
    most = demand.most_tokens(num_blocks, at_most=150)
    assert most == 0 or demand.num_blocks(most) <= num_blocks
    assert most == 150 or demand.num_blocks(most + 1) > num_blocks


def test_the_largest_request_is_no_larger_than_asked():
    assert BlockDemand(4).most_tokens(100, at_most=39) == 39
    assert BlockDemand(4, (8,), max_step_tokens=4).most_tokens(4, at_most=10**6) == 10**6
