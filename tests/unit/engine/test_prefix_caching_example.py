"""Prefix caching, step by step, with the free queue spelled out. Read it from top to bottom.

Six blocks of four tokens. A queue is written front first: the front is what is handed out next, ``*`` marks blocks that
still hold a prefix that can be found. Tokens are letters here.
"""

from __future__ import annotations

from ullage.engine.kv_cache import KVCacheConfig, KVCacheManager
from ullage.engine.request import Request
from ullage.engine.sampling_params import SamplingParams
from ullage.plan.block_demand import BlockDemand
from ullage.plan.ledger import MemoryLedger


class Example:
    def __init__(self) -> None:
        ledger = MemoryLedger({"kv_pool": 6 * 4})
        self.kv_cache = KVCacheManager(KVCacheConfig(6, BlockDemand(4), slot_bytes=1), ledger)

    def admit(self, text: str, *, salt: str = "") -> tuple[Request, int | None]:
        token_ids = [ord(letter) for letter in text]
        request = Request(0, token_ids, len(token_ids), SamplingParams(), seed=0, cache_salt=salt)
        num_cached_tokens = self.kv_cache.admit(request)
        if num_cached_tokens is not None:
            self.kv_cache.advance(request, request.num_pending_tokens)
        return request, num_cached_tokens

    def generate(self, request: Request, text: str) -> None:
        for letter in text:
            request.token_ids.append(ord(letter))
            assert self.kv_cache.extend(request) is not None
            self.kv_cache.advance(request, 1)

    @property
    def free_queue(self) -> str:
        blocks = self.kv_cache.pool.free_queue.values()
        return " ".join(f"{block.block_id}*" if block.prefix is not None else f"{block.block_id}" for block in blocks)


def test_worked_example():
    example = Example()
    assert example.free_queue == "0 1 2 3 4 5"

    # A cold cache: all ten tokens are computed. Two blocks are full and can be found from now on, the third is not.
    first, num_cached_tokens = example.admit("abcdefghij")
    assert (num_cached_tokens, first.block_tables) == (0, [[0, 1, 2]])
    assert example.free_queue == "3 4 5"

    # The same beginning: blocks 0 and 1 are shared while their first owner still runs.
    second, num_cached_tokens = example.admit("abcdefghXY")
    assert (num_cached_tokens, second.block_tables) == (8, [[0, 1, 3]])
    assert example.free_queue == "4 5"

    # Output fills block 3: "XYZW" after "abcdefgh" can be found too. The next token needs a new block.
    example.generate(second, "ZWV")
    assert second.block_tables == [[0, 1, 3, 4]]
    assert example.free_queue == "5"

    # The second ends. Block 4 was never full: to the front. Block 3 waits at the end; 0 and 1 have another owner.
    example.kv_cache.free(second)
    assert example.free_queue == "4 5 3*"

    # The first ends: the last block first, so that block 1 is evicted before block 0, without which it is no use.
    example.kv_cache.free(first)
    assert example.free_queue == "2 4 5 3* 1* 0*"

    # Another salt: equal tokens, nothing shared.
    other, num_cached_tokens = example.admit("abcdefghij", salt="another tenant")
    assert (num_cached_tokens, other.block_tables) == (0, [[2, 4, 5]])
    assert example.free_queue == "3* 1* 0*"

    # A prompt of exactly two blocks: the last token must be run again for its logits, and so its whole block. Block 0
    # is taken out of the queue where it is; block 3 is evicted.
    exact, num_cached_tokens = example.admit("abcdefgh")
    assert (num_cached_tokens, exact.block_tables) == (4, [[0, 3]])
    assert example.free_queue == "1*"

    # Block 3 now holds what block 1 already stands for, and isn't published itself. It passes for block 1, though: what
    # is built on it continues the same prefix.
    example.kv_cache.free(exact)
    assert example.free_queue == "3 1* 0*"

    # Four new blocks are more than there are: None, and nothing has changed.
    _, num_cached_tokens = example.admit("klmnopqrstuvw")
    assert num_cached_tokens is None
    assert example.free_queue == "3 1* 0*"

    # Three are possible: the prefixes in them are gone, tail first.
    example.admit("klmnopqrstuv")
    assert example.free_queue == ""
    assert len(example.kv_cache.pool.prefixes) == 2 + 3  # of the other tenant, and of the new one
