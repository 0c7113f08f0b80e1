from __future__ import annotations

import pytest

from ullage.engine.block_pool import Block, BlockPool, Prefix


def full_block(pool: BlockPool, group: int = 0) -> Block:
    block = pool.allocate(group)
    assert block is not None
    pool.write(block, pool.block_size)
    return block


def holds(pool: BlockPool, blocks: list[Block], held: list[Prefix]) -> bool:
    return all(pool.statements([[block.block_id for block in blocks]], held).values())


def test_misuse_is_a_bug():
    pool = BlockPool(2, 4)
    with pytest.raises(AssertionError, match="released once too often"):
        pool.release(pool.blocks[0])
    with pytest.raises(AssertionError, match="only published blocks"):
        pool.share(pool.blocks[0])


def test_blocks_of_all_groups_are_found_by_one_prefix():
    pool = BlockPool(4, 4)
    blocks = [full_block(pool, group) for group in (0, 1)]
    prefix = pool.publish(blocks, ("", (1, 2, 3, 4)))
    assert pool.prefixes == {("", (1, 2, 3, 4)): prefix}
    assert prefix.blocks == {0: blocks[0], 1: blocks[1]}
    assert holds(pool, blocks, [])


def test_a_twin_stays_private_and_what_was_evicted_is_filled_in():
    pool = BlockPool(4, 4)
    first = [full_block(pool, group) for group in (0, 1)]
    prefix = pool.publish(first, ("", (1, 2, 3, 4)))
    pool.release(first[1])
    other = [full_block(pool, 0) for _ in range(3)]  # takes the released one last
    assert prefix.blocks == {0: first[0]}
    for block in other[1:]:
        pool.release(block)
    again = [full_block(pool, group) for group in (0, 1)]
    assert pool.publish(again, ("", (1, 2, 3, 4))) is prefix
    assert prefix.blocks == {0: first[0], 1: again[1]}
    assert again[0].prefix is None
    assert holds(pool, [first[0], other[0], *again], [])


def test_a_prefix_without_blocks_is_kept_while_a_longer_one_can_be_found():
    pool = BlockPool(2, 4)
    head = full_block(pool)
    parent = pool.publish([head], ("", (1, 2, 3, 4)))
    tail = full_block(pool)
    pool.publish([tail], (parent, (5, 6, 7, 8)))
    pool.release(head)
    head_taken = full_block(pool)
    assert parent.blocks == {}
    assert len(pool.prefixes) == 2
    assert pool.publish([head_taken], ("", (1, 2, 3, 4))) is parent  # computed anew: the tail is found again
    pool.release(head_taken)
    pool.release(tail)
    for _ in range(2):
        pool.allocate(0)
    assert pool.prefixes == {}


def test_a_prefix_is_kept_while_it_is_held():
    pool = BlockPool(1, 4)
    block = full_block(pool)
    prefix = pool.publish([block], ("", (1, 2, 3, 4)))
    prefix.num_holders += 1
    pool.release(block)
    taken = pool.allocate(0)
    assert taken is block
    assert holds(pool, [taken], [prefix])
    pool.let_go(prefix)
    assert pool.prefixes == {}
