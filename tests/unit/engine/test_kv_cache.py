from __future__ import annotations

import pytest

from ullage.base.errors import ConfigError, EngineError
from ullage.engine.kv_cache import BlockPool, KVCacheConfig, KVCacheManager
from ullage.engine.request import Request
from ullage.engine.sampling_params import SamplingParams
from ullage.plan.ledger import MemoryLedger

BLOCK_SIZE, TOKEN_BYTES = 4, 10


def make_kv_cache(num_blocks: int = 8, *, enable_prefix_caching: bool = True) -> KVCacheManager:
    config = KVCacheConfig(num_blocks, BLOCK_SIZE, TOKEN_BYTES, enable_prefix_caching)
    return KVCacheManager(config, MemoryLedger({"kv_pool": num_blocks * config.block_bytes}))


def make_request(token_ids: list[int]) -> Request:
    return Request(0, token_ids, len(token_ids), SamplingParams(), seed=0)


def admit_and_run(kv_cache: KVCacheManager, token_ids: list[int]) -> Request:
    request = make_request(token_ids)
    assert kv_cache.admit(request) is not None
    kv_cache.advance(request, request.num_pending_tokens)
    return request


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
    assert len(kv_cache.pool.published) == 3  # the common first block only once
    assert kv_cache.admit(make_request([1] * 4 + [2] * 5)) == 8
    kv_cache.check_integrity([*(twin.block_ids for twin in twins), [0, 4, 6]])


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
    assert kv_cache.extend(request) == [0, 1, 2]
    kv_cache.advance(request, 1)
    request.token_ids.extend([1] * 4)
    assert kv_cache.extend(request) is None
    assert request.block_ids == [0, 1, 2]


def test_cached_blocks_that_are_needed_are_not_counted_as_room():
    kv_cache = make_kv_cache(3)
    kv_cache.free(admit_and_run(kv_cache, [1] * 8))
    assert kv_cache.pool.num_cached == 2
    assert kv_cache.admit(make_request([1] * 8 + [2] * 5)) is None
    assert kv_cache.admit(make_request([1] * 8 + [2] * 4)) == 8


def test_misuse_is_a_bug():
    kv_cache = make_kv_cache()
    request = admit_and_run(kv_cache, [1] * 5)
    with pytest.raises(AssertionError, match="holds blocks already"):
        kv_cache.admit(request)
    with pytest.raises(AssertionError):
        kv_cache.advance(request, 1)
    pool = BlockPool(2, BLOCK_SIZE)
    with pytest.raises(AssertionError, match="released once too often"):
        pool.release(pool.blocks[0])
    with pytest.raises(AssertionError, match="only published blocks"):
        pool.share(pool.blocks[0])


def test_integrity_check_names_what_is_wrong():
    kv_cache = make_kv_cache()
    request = admit_and_run(kv_cache, [1] * 5)
    kv_cache.check_integrity([request.block_ids])
    with pytest.raises(EngineError, match="reference counts = block tables"):
        kv_cache.check_integrity([])
    kv_cache.pool.num_used_tokens += 1
    with pytest.raises(EngineError, match=r"used tokens; ledger: used$"):
        kv_cache.check_integrity([request.block_ids])


@pytest.mark.parametrize("name", ["num_blocks", "block_size", "token_bytes"])
def test_an_impossible_pool_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
        KVCacheConfig(**{"num_blocks": 1, "block_size": 1, "token_bytes": 1, name: 0})
