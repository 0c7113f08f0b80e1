from __future__ import annotations

import pytest

from ullage.base.errors import ConfigError, EngineError
from ullage.engine.kv_cache import KVCacheConfig, KVCacheManager
from ullage.engine.request import Request
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import RELEASED_BLOCK
from ullage.plan.block_demand import BlockDemand
from ullage.plan.ledger import MemoryLedger

BLOCK_SIZE, SLOT_BYTES = 4, 10


def make_kv_cache(
    num_blocks: int = 8,
    *,
    windows: tuple[int | None, ...] = (None,),
    max_step_tokens: int = 8,
    enable_prefix_caching: bool = True,
) -> KVCacheManager:
    demand = BlockDemand(BLOCK_SIZE, windows, max_step_tokens)
    config = KVCacheConfig(num_blocks, demand, SLOT_BYTES, enable_prefix_caching)
    return KVCacheManager(config, MemoryLedger({"kv_pool": num_blocks * config.block_bytes}))


def make_request(token_ids: list[int]) -> Request:
    return Request(0, token_ids, len(token_ids), SamplingParams(), seed=0)


def admit_and_run(kv_cache: KVCacheManager, token_ids: list[int]) -> Request:
    request = make_request(token_ids)
    assert kv_cache.admit(request) is not None
    kv_cache.advance(request, request.num_pending_tokens)
    return request


def run(kv_cache: KVCacheManager, request: Request, num_tokens: int | None = None) -> None:
    """Runs a request's pending tokens, or so many of them, in steps as large as may be."""
    end = request.num_tokens if num_tokens is None else request.num_computed_tokens + num_tokens
    while request.num_computed_tokens < end:
        assert kv_cache.extend(request) is not None
        kv_cache.advance(request, min(kv_cache.config.demand.max_step_tokens, end - request.num_computed_tokens))
        kv_cache.check_integrity([request])


def books(kv_cache: KVCacheManager) -> tuple[int, int, int]:
    snapshot = kv_cache._ledger.snapshot()
    return snapshot.kv_reserved_bytes, snapshot.kv_used_bytes, snapshot.kv_cached_bytes


class CollidingTokenId(int):
    """All of these have the same hash, so tuples of them do too; equal they are only when they are."""

    def __hash__(self) -> int:
        return 0


def test_a_hash_collision_never_serves_another_prompts_cache():
    kv_cache = make_kv_cache()
    mine, yours = ([CollidingTokenId(i) for i in token_ids] for token_ids in ([1] * 9, [2] * 9))
    assert hash(tuple(mine[:4])) == hash(tuple(yours[:4]))
    admit_and_run(kv_cache, mine)
    assert kv_cache.admit(make_request(yours)) == 0
    assert kv_cache.admit(make_request(mine)) == 8


def test_equal_blocks_after_different_beginnings_are_not_the_same():
    kv_cache = make_kv_cache(12)
    admit_and_run(kv_cache, [1, 1, 1, 1, 5, 5, 5, 5, 9])
    admit_and_run(kv_cache, [2, 2, 2, 2, 6, 6, 6, 6, 9])
    assert kv_cache.admit(make_request([2, 2, 2, 2, 5, 5, 5, 5, 9])) == 4


def test_equal_prompts_in_one_step_share_what_comes_after():
    kv_cache = make_kv_cache(12)
    twins = [make_request([1] * 9), make_request([1] * 4 + [2] * 5)]
    for twin in twins:
        assert kv_cache.admit(twin) == 0
    for twin in twins:
        kv_cache.advance(twin, 9)
    assert len(kv_cache.pool.prefixes) == 3  # the common first block only once
    third = make_request([1] * 4 + [2] * 5)
    assert kv_cache.admit(third) == 8
    assert third.block_tables == [[0, 4, 6]]
    kv_cache.check_integrity([*twins, third])


def test_the_ledger_knows_reserved_used_and_cached_bytes():
    kv_cache = make_kv_cache()
    request = make_request([1] * 6)
    kv_cache.admit(request)
    assert books(kv_cache) == (2 * 40, 0, 0)
    kv_cache.advance(request, 6)
    assert books(kv_cache) == (2 * 40, 60, 0)
    same = admit_and_run(kv_cache, [1] * 6)  # a shared block counts once
    assert books(kv_cache) == (3 * 40, 80, 0)
    kv_cache.free(request)
    assert books(kv_cache) == (2 * 40, 60, 0)
    kv_cache.free(same)
    assert books(kv_cache) == (0, 0, 40)


def test_nothing_is_found_when_prefix_caching_is_off():
    kv_cache = make_kv_cache(enable_prefix_caching=False)
    admit_and_run(kv_cache, [1] * 9)
    assert kv_cache.admit(make_request([1] * 9)) == 0


def test_what_can_not_be_allocated_is_none_and_changes_nothing():
    kv_cache = make_kv_cache(3)
    request = admit_and_run(kv_cache, [1] * 8)
    assert kv_cache.admit(make_request([2] * 8)) is None
    assert kv_cache.admit(make_request([2]), keep_free=1) is None
    assert kv_cache.pool.num_free == 1
    request.token_ids.append(1)
    assert kv_cache.extend(request) == [[0, 1, 2]]
    kv_cache.advance(request, 1)
    request.token_ids.extend([1] * 4)
    assert kv_cache.extend(request) is None
    assert request.block_tables == [[0, 1, 2]]


def test_cached_blocks_that_are_needed_are_not_counted_as_room():
    kv_cache = make_kv_cache(3)
    kv_cache.free(admit_and_run(kv_cache, [1] * 8))
    assert kv_cache.pool.num_cached == 2
    assert kv_cache.admit(make_request([1] * 8 + [2] * 5)) is None
    assert kv_cache.admit(make_request([1] * 8 + [2] * 4)) == 8


GONE = RELEASED_BLOCK


def test_a_group_with_a_window_gives_back_what_no_token_to_come_can_see():
    kv_cache = make_kv_cache(20, windows=(None, 6), max_step_tokens=4)
    request = make_request([1] * 13)
    assert kv_cache.admit(request) == 0
    assert request.block_tables == [[0, 1, 2, 3], [4, 5, 6]]  # 5 + 4 tokens touch at most three blocks
    run(kv_cache, request, 8)
    assert request.block_tables == [[0, 1, 2, 3], [4, 5, 6]]  # the token at 8 sees the one at 3
    run(kv_cache, request, 1)
    assert request.block_tables == [[0, 1, 2, 3], [GONE, 5, 6]]
    assert books(kv_cache) == (6 * 40, (9 + 5) * 10, 40)
    run(kv_cache, request)
    assert request.block_tables == [[0, 1, 2, 3], [GONE, GONE, 6, 7]]
    kv_cache.free(request)
    assert books(kv_cache)[:2] == (0, 0)


def test_a_prefix_hit_needs_only_the_window_of_a_group_that_has_one():
    kv_cache = make_kv_cache(10, windows=(None, 5), max_step_tokens=4)
    request = make_request([1] * 13)
    kv_cache.admit(request)
    run(kv_cache, request)
    kv_cache.free(request)
    first_windowed = make_request([2] * 4)  # evicts what was given back first: block 0 of the window
    kv_cache.admit(first_windowed)
    run(kv_cache, first_windowed)
    kv_cache.free(first_windowed)
    again = make_request([1] * 12 + [3] * 4)
    assert kv_cache.admit(again) == 12
    full, windowed = again.block_tables
    assert GONE not in full
    assert windowed[:2] == [GONE, GONE]
    assert len(set(full + windowed[2:])) == 4 + 2
    kv_cache.check_integrity([again])


def evict_windowed_block(kv_cache: KVCacheManager, token_ids: list[int]) -> None:
    """Forgets what the windowed group, the second, holds at the end of these tokens."""
    prefix = None
    for end in range(BLOCK_SIZE, len(token_ids) + 1, BLOCK_SIZE):
        prefix = kv_cache.pool.prefixes[(prefix or "", tuple(token_ids[end - BLOCK_SIZE : end]))]
    block = prefix.blocks[1]
    kv_cache.pool.free_queue.move_to_end(block.block_id, last=False)
    kv_cache.pool.release(kv_cache.pool.allocate(1))


def test_the_longest_prefix_whose_window_is_complete_is_taken():
    kv_cache = make_kv_cache(12, windows=(None, 5), max_step_tokens=100)
    tokens = [1] * 8 + [2] * 8 + [3]
    kv_cache.free(admit_and_run(kv_cache, tokens))
    evict_windowed_block(kv_cache, tokens[:16])
    request = make_request(tokens)
    assert kv_cache.admit(request) == 12  # the token at 12 sees those from 8 on: the third block
    kv_cache.free(request)
    evict_windowed_block(kv_cache, tokens[:8])
    assert kv_cache.admit(request) == 12
    kv_cache.free(request)
    evict_windowed_block(kv_cache, tokens[:12])
    assert kv_cache.admit(request) == 4
    kv_cache.check_integrity([request])
    kv_cache.advance(request, request.num_pending_tokens)  # what was missing is there again
    kv_cache.free(request)
    assert kv_cache.admit(request) == 16


def test_a_prefix_is_found_by_its_end_alone_where_every_layer_has_a_window():
    kv_cache = make_kv_cache(6, windows=(5,), max_step_tokens=4)
    request = make_request([1, 2, 3, 4] * 8 + [5])
    kv_cache.admit(request)
    run(kv_cache, request)  # nine blocks went through a pool of six
    kv_cache.free(request)
    again = make_request([1, 2, 3, 4] * 8 + [5])
    assert kv_cache.admit(again) == 32
    assert again.block_tables[0][:7] == [GONE] * 7
    kv_cache.check_integrity([again])


def test_all_groups_get_their_blocks_or_none():
    kv_cache = make_kv_cache(7, windows=(None, 6, 6), max_step_tokens=4)
    assert kv_cache.admit(make_request([1] * 9)) is None
    request = make_request([1] * 8)
    assert kv_cache.admit(request, keep_free=3) is None
    assert kv_cache.admit(request) == 0
    kv_cache.advance(request, 8)
    request.token_ids.append(1)
    assert kv_cache.extend(request) is None
    assert [len(table) for table in request.block_tables] == [2, 2, 2]
    assert kv_cache.pool.num_free == 1


def test_tails_of_all_groups_are_evicted_before_their_heads():
    kv_cache = make_kv_cache(6, windows=(None, 40), max_step_tokens=12)
    request = admit_and_run(kv_cache, [1] * 12)
    assert request.block_tables == [[0, 1, 2], [3, 4, 5]]
    kv_cache.free(request)
    assert list(kv_cache.pool.free_queue) == [2, 5, 1, 4, 0, 3]


def test_misuse_is_a_bug():
    kv_cache = make_kv_cache()
    request = admit_and_run(kv_cache, [1] * 5)
    with pytest.raises(AssertionError, match="holds blocks already"):
        kv_cache.admit(request)
    with pytest.raises(AssertionError):
        kv_cache.advance(request, 1)


def test_integrity_check_names_what_is_wrong():
    kv_cache = make_kv_cache()
    request = admit_and_run(kv_cache, [1] * 5)
    kv_cache.check_integrity([request])
    with pytest.raises(EngineError, match="reference counts = block tables"):
        kv_cache.check_integrity([])
    kv_cache.pool.num_used_tokens += 1
    with pytest.raises(EngineError, match=r"used tokens; ledger: used$"):
        kv_cache.check_integrity([request])


@pytest.mark.parametrize("name", ["num_blocks", "block_size", "slot_bytes"])
def test_an_impossible_pool_is_refused(name):
    sizes = {"num_blocks": 1, "block_size": 1, "slot_bytes": 1, name: 0}
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
        KVCacheConfig(sizes["num_blocks"], BlockDemand(sizes["block_size"]), sizes["slot_bytes"])
