"""The KV cache's bookkeeping: which block belongs to whom, and which prefix can be found again.

Blocks are numbers here; the runner owns the tensors behind them. Three levels, each knows only the one before::

    Block  ◀─  BlockPool (free queue, reference counts, published prefixes)  ◀─  KVCacheManager (block tables)

**Prefix caching.** When a block is full it is *published* under the key ``(parent, tokens)``: the tokens it holds, and
the prefix they follow, the parent's ``prefix_id`` (for a first block: the request's salt). Prefix ids are never given
twice, so a chain of keys stands for exactly one text. The dictionary hashes a key to find it and then compares the key
itself, tokens and parent, so that two prompts whose hashes collide can't be served each other's cache. Only full
blocks are shared, and the last token of a request is always run again, because its logits are needed.

**Eviction.** A published block without references waits in the free queue as *cached*. The front of the queue is
handed out first; what was freed last stands last (least recently used), tails before their heads, and blocks that
were never published go to the very front. Should a head be evicted before its tail after all, the tail can't be found
any more and leaves in its turn. ``tests/unit/engine/test_prefix_caching_example.py`` walks through all of it.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ullage.base.errors import ConfigError, EngineError
from ullage.engine.request import Request
from ullage.plan.ledger import MemoryLedger

PrefixKey = tuple[int | str, tuple[int, ...]]
"""(parent's prefix id, or the salt for a first block; tokens of the block)."""


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The pool, as planned."""

    num_blocks: int
    """Blocks in the pool."""
    block_size: int
    """Tokens in a block."""
    token_bytes: int
    """Bytes of one token's keys and values, over all layers."""
    enable_prefix_caching: bool = True
    """Keep full blocks findable after their request ended."""

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "token_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.token_bytes


@dataclass(slots=True, eq=False)
class Block:
    """One block of the pool."""

    block_id: int
    num_references: int = 0
    """Block tables it stands in."""
    num_tokens: int = 0
    """Tokens written. A block that isn't full has one owner."""
    prefix_id: int | None = None
    """Stands for all tokens up to the end of this block; None until it is full."""
    key: PrefixKey | None = None
    """What it can be found by; None: not published."""


class BlockPool:
    """Owns all blocks. Counts as it goes, so that the books cost nothing to read."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self.free_queue: OrderedDict[int, Block] = OrderedDict((block.block_id, block) for block in self.blocks)
        self.published: dict[PrefixKey, Block] = {}
        self.num_cached = 0
        """Published blocks in the free queue."""
        self.num_used_tokens = 0
        """Tokens written in blocks that are referenced."""
        self._prefix_ids = itertools.count()

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, the cached ones among them."""
        return len(self.free_queue)

    @property
    def num_referenced(self) -> int:
        return len(self.blocks) - len(self.free_queue)

    def allocate(self) -> Block | None:
        """An empty block with one reference; None when there is none. Evicts the cached prefix it may have held."""
        if not self.free_queue:
            return None
        _, block = self.free_queue.popitem(last=False)
        if block.key is not None:
            del self.published[block.key]
            self.num_cached -= 1
        block.num_references, block.num_tokens, block.prefix_id, block.key = 1, 0, None, None
        return block

    def find(self, key: PrefixKey) -> Block | None:
        return self.published.get(key)

    def share(self, block: Block) -> None:
        """One more reference to a published block, wherever it is."""
        assert block.key is not None, "only published blocks are shared"
        if block.num_references == 0:
            del self.free_queue[block.block_id]
            self.num_cached -= 1
            self.num_used_tokens += block.num_tokens
        block.num_references += 1

    def release(self, block: Block) -> None:
        """One reference less; the last one puts the block into the free queue."""
        assert block.num_references > 0, f"block {block.block_id} released once too often"
        block.num_references -= 1
        if block.num_references > 0:
            return
        self.num_used_tokens -= block.num_tokens
        self.free_queue[block.block_id] = block
        if block.key is not None:
            self.num_cached += 1
        else:
            self.free_queue.move_to_end(block.block_id, last=False)

    def write(self, block: Block, num_tokens: int) -> None:
        """Notes that ``num_tokens`` more were written into a block."""
        assert block.num_references == 1
        assert block.num_tokens + num_tokens <= self.block_size
        block.num_tokens += num_tokens
        self.num_used_tokens += num_tokens

    def publish(self, block: Block, key: PrefixKey) -> None:
        """Makes a full block findable. When its twin is already (equal prompts in one step), it stays private but
        passes for the twin: what follows it is the same prefix.
        """
        assert block.num_tokens == self.block_size
        assert block.prefix_id is None
        twin = self.published.get(key)
        if twin is not None:
            block.prefix_id = twin.prefix_id
        else:
            block.prefix_id, block.key = next(self._prefix_ids), key
            self.published[key] = block


class KVCacheManager:
    """Gives requests their blocks, finds cached prefixes, and keeps the ledger's KV books."""

    def __init__(self, config: KVCacheConfig, ledger: MemoryLedger) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks, config.block_size)
        self._ledger = ledger

    def admit(self, request: Request, *, keep_free: int = 0) -> int | None:
        """Gives a request without blocks those for all tokens it has; what the prefix cache holds counts as computed.

        :param keep_free: blocks that must be left in the pool afterwards
        :return: tokens found in the cache; None: not enough free blocks, nothing changed
        """
        assert not request.block_ids, "the request holds blocks already"
        cached = self._find_prefix(request)
        num_new = self._num_blocks_for(request.num_tokens) - len(cached)
        num_taken = num_new + sum(block.num_references == 0 for block in cached)
        if num_taken + keep_free > self.pool.num_free:
            return None
        for block in cached:  # before anything is allocated, so that it can't be evicted
            self.pool.share(block)
        request.block_ids = [block.block_id for block in cached]
        request.num_computed_tokens = len(cached) * self.config.block_size
        for _ in range(num_new):
            self._append_block(request)
        self._book()
        return request.num_computed_tokens

    def extend(self, request: Request) -> list[int] | None:
        """Adds a block when the request's tokens need one more.

        :return: the block table; None: no block is free, nothing changed
        """
        if len(request.block_ids) * self.config.block_size < request.num_tokens:
            if not self.pool.num_free:
                return None
            self._append_block(request)
            self._book()
        return request.block_ids

    def advance(self, request: Request, num_tokens: int) -> None:
        """Notes that the next ``num_tokens`` tokens were computed; publishes the blocks they filled."""
        block_size = self.config.block_size
        end = request.num_computed_tokens + num_tokens
        assert end <= request.num_tokens <= len(request.block_ids) * block_size
        while request.num_computed_tokens < end:
            index, offset = divmod(request.num_computed_tokens, block_size)
            num_written = min(block_size - offset, end - request.num_computed_tokens)
            block = self.pool.blocks[request.block_ids[index]]
            self.pool.write(block, num_written)
            request.num_computed_tokens += num_written
            if block.num_tokens == block_size and self.config.enable_prefix_caching:
                self.pool.publish(block, self._key(request, index))
        self._book()

    def free(self, request: Request) -> None:
        """Takes a request's blocks back, the last first, so that tails are evicted before the heads they need."""
        block_ids, request.block_ids, request.num_computed_tokens = request.block_ids, [], 0
        for block_id in reversed(block_ids):
            self.pool.release(self.pool.blocks[block_id])
        self._book()

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.config.block_size)

    def _append_block(self, request: Request) -> None:
        block = self.pool.allocate()
        assert block is not None
        request.block_ids.append(block.block_id)

    def _find_prefix(self, request: Request) -> list[Block]:
        """The longest chain of published blocks that begins the request, short of its last token."""
        found: list[Block] = []
        if not self.config.enable_prefix_caching:
            return found
        size = self.config.block_size
        parent: int | str | None = request.cache_salt
        for start in range(0, request.num_tokens - size, size):
            assert parent is not None
            block = self.pool.find((parent, tuple(request.token_ids[start : start + size])))
            if block is None:
                break
            found.append(block)
            parent = block.prefix_id
        return found

    def _key(self, request: Request, index: int) -> PrefixKey:
        size = self.config.block_size
        parent = self.pool.blocks[request.block_ids[index - 1]].prefix_id if index else request.cache_salt
        assert parent is not None, "blocks fill up in order"
        return parent, tuple(request.token_ids[index * size : (index + 1) * size])

    def _book(self) -> None:
        self._ledger.book_kv(
            reserved_bytes=self.pool.num_referenced * self.config.block_bytes,
            used_bytes=self.pool.num_used_tokens * self.config.token_bytes,
            cached_bytes=self.pool.num_cached * self.config.block_bytes,
        )

    def check_integrity(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Compares all counts with what they count. For tests and for an idle engine.

        :param block_tables: those of all requests that hold blocks
        :raises EngineError: something doesn't add up (a bug)
        """
        pool, blocks = self.pool, self.pool.blocks
        references = Counter(itertools.chain.from_iterable(block_tables))
        referenced = [block for block in blocks if block.num_references > 0]
        cached = [block for block in pool.free_queue.values() if block.key is not None]
        booked = self._ledger.snapshot()
        statements = {
            "free + referenced = total": pool.num_free + len(referenced) == len(blocks),
            "reference counts = block tables": references == {b.block_id: b.num_references for b in referenced},
            "no free block is referenced": all(b.num_references == 0 for b in pool.free_queue.values()),
            "published blocks are full": all(b.num_tokens == pool.block_size for b in pool.published.values()),
            "every key leads to its block": pool.published == {b.key: b for b in blocks if b.key is not None},
            "cached": pool.num_cached == len(cached),
            "used tokens": pool.num_used_tokens == sum(b.num_tokens for b in referenced),
            "ledger: reserved": booked.kv_reserved_bytes == len(referenced) * self.config.block_bytes,
            "ledger: used": booked.kv_used_bytes == pool.num_used_tokens * self.config.token_bytes,
            "ledger: cached": booked.kv_cached_bytes == len(cached) * self.config.block_bytes,
        }
        wrong = [statement for statement, holds in statements.items() if not holds]
        if wrong:
            raise EngineError(f"the KV cache's books are wrong: {'; '.join(wrong)}")
