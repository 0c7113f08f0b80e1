"""The KV cache's bookkeeping: which block belongs to whom, and which prefix can be found again.

Blocks are numbers here; the runner owns the tensors behind them. Three levels, each knows only the one before::

    Block, Prefix  ◀─  BlockPool (free queue, reference counts, prefixes)  ◀─  KVCacheManager (block tables)

A request has a block table for each group of layers (``models/layer_groups.py``). All blocks are alike, and any free
one serves any group. How many blocks a request holds at any time follows from ``plan/block_demand.py``.

**Prefix hits.** Of a prefix of n blocks, a request needs all n in the groups without a window; in a group with one,
only those that its next token can see. It gets the longest prefix of which the pool still has these. The last token of
a request is always run again, because its logits are needed.

**Promises.** A request may be promised all blocks that it can ever hold at one time. What it doesn't hold of them yet
stays in the free queue, cached prefixes and all, but nobody else gets it. Two requests may share a block. Without a
window both keep it to their end, so it counts once. With one they give it back at different times and then need one
each, so each reference beyond the first keeps another block free. Hence, at any moment::

    free blocks >= promised and not held yet + references beyond the first in groups with a window

Taking a block, giving one back, sharing and ending change both sides alike, or the left one more. So the blocks of a
promise are always there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from ullage.base.errors import ConfigError, EngineError
from ullage.engine.block_pool import Block, BlockPool, Prefix
from ullage.engine.request import Request
from ullage.engine.step import RELEASED_BLOCK
from ullage.plan.block_demand import BlockDemand
from ullage.plan.ledger import MemoryLedger


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The pool, as planned."""

    num_blocks: int
    """Blocks in the pool."""
    demand: BlockDemand
    """Block size, and how many blocks a request holds."""
    slot_bytes: int
    """Bytes of one token's keys and values in a block: over the layers of one group."""
    enable_prefix_caching: bool = True
    """Keep full blocks findable after their request ended."""

    def __post_init__(self) -> None:
        sizes = {"num_blocks": self.num_blocks, "block_size": self.demand.block_size, "slot_bytes": self.slot_bytes}
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"{name} must be at least 1, got {size}")

    @property
    def block_bytes(self) -> int:
        return self.demand.block_size * self.slot_bytes


class KVCacheManager:
    """Gives requests their blocks, finds cached prefixes, and keeps the ledger's KV books."""

    def __init__(self, config: KVCacheConfig, ledger: MemoryLedger) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks, config.demand.block_size)
        self._demand = config.demand
        self._windowed = [(group, w) for group, w in enumerate(config.demand.windows) if w is not None]
        self._ledger = ledger
        self.num_promised = 0
        """Blocks that were promised to requests and aren't held by them yet."""

    @property
    def num_available(self) -> int:
        """Free blocks that nobody was promised."""
        return self.pool.num_free - self.num_promised - sum(self.pool.num_shares[group] for group, _ in self._windowed)

    def admit(self, request: Request, *, num_blocks: int = 0, promised: bool = False, keep_free: int = 0) -> int | None:
        """Gives a request without blocks those it may hold now; what the prefix cache holds counts as computed.

        :param num_blocks: how many must be there for it, now or later, those it gets now included
        :param promised: they stay there until it needs them
        :param keep_free: blocks that must be left to others besides
        :return: tokens found in the cache; None: not enough free blocks, nothing changed
        """
        assert not request.block_tables, "the request holds blocks already"
        prefixes = self._find_prefixes(request)
        num_cached_tokens = len(prefixes) * self._demand.block_size
        cached: list[list[Block]] = []
        num_needed = num_held = 0  # taken from those available; in its tables
        for group, window in enumerate(self._demand.windows):
            seen = prefixes[self._demand.first_block(window, num_cached_tokens) :]
            cached.append([prefix.blocks[group] for prefix in seen])
            num_new = self._demand.table_length(window, num_cached_tokens, request.num_tokens) - len(prefixes)
            num_held += len(seen) + num_new
            num_needed += num_new
            num_needed += sum(window is not None or block.num_references == 0 for block in cached[group])
        if num_needed + max(0, num_blocks - num_held) + keep_free > self.num_available:
            return None
        request.num_computed_tokens = num_cached_tokens
        request.num_promised_blocks = num_blocks if promised else 0
        self.num_promised += request.num_promised_blocks
        for blocks in cached:  # before anything is allocated, so that it can't be evicted
            for block in blocks:
                self.pool.share(block)
            given_back = [RELEASED_BLOCK] * (len(prefixes) - len(blocks))
            request.block_tables.append(given_back + [block.block_id for block in blocks])
            self._count_held(request, len(blocks))
        if prefixes:
            self._move_to(request, prefixes[-1])
        self._fill_up(request)
        self._book()
        return num_cached_tokens

    def extend(self, request: Request) -> list[list[int]] | None:
        """Adds the blocks that the request's next step may need.

        :return: the block tables; None: not enough blocks are free, nothing changed. Never None for one to which its
            blocks were promised.
        """
        num_missing = 0
        for window, table in zip(self._demand.windows, request.block_tables, strict=True):
            num_missing += self._length_of(request, window) - len(table)
        if num_missing:
            if request.num_promised_blocks:
                assert request.num_held_blocks + num_missing <= request.num_promised_blocks
            elif num_missing > self.num_available:
                return None
            self._fill_up(request)
            self._book()
        return request.block_tables

    def advance(self, request: Request, num_tokens: int) -> None:
        """Notes that the next ``num_tokens`` tokens were computed: publishes the blocks they filled, and gives back
        those that no token from now on can see.
        """
        block_size = self._demand.block_size
        end = request.num_computed_tokens + num_tokens
        assert end <= request.num_tokens
        while request.num_computed_tokens < end:
            index, offset = divmod(request.num_computed_tokens, block_size)
            num_written = min(block_size - offset, end - request.num_computed_tokens)
            for table in request.block_tables:
                self.pool.write(self.pool.blocks[table[index]], num_written)
            request.num_computed_tokens += num_written
            if offset + num_written == block_size and self._may_cache(request):
                self._publish(request, index)
        self._give_back(request)
        self._book()

    def free(self, request: Request) -> None:
        """Takes a request's blocks back, the last first, so that tails are evicted before the heads they need."""
        tables, request.block_tables, request.num_computed_tokens = request.block_tables, [], 0
        self._count_held(request, -request.num_held_blocks)
        self.num_promised -= request.num_promised_blocks
        request.num_promised_blocks = 0
        for block_ids in reversed(list(zip_longest(*tables, fillvalue=RELEASED_BLOCK))):
            for block_id in block_ids:
                if block_id != RELEASED_BLOCK:
                    self.pool.release(self.pool.blocks[block_id])
        self._move_to(request, None)
        self._book()

    def _may_cache(self, request: Request) -> bool:
        return self.config.enable_prefix_caching and not request.is_probe

    def _length_of(self, request: Request, window: int | None) -> int:
        """Entries that a table must have now."""
        return self._demand.table_length(window, request.num_computed_tokens, len(request.token_ids))

    def _fill_up(self, request: Request) -> None:
        for group, window in enumerate(self._demand.windows):
            table = request.block_tables[group]
            for _ in range(self._length_of(request, window) - len(table)):
                block = self.pool.allocate(group)
                assert block is not None
                table.append(block.block_id)
                self._count_held(request, 1)

    def _give_back(self, request: Request) -> None:
        for group, window in self._windowed:
            table = request.block_tables[group]
            index = self._demand.first_block(window, request.num_computed_tokens) - 1
            while index >= 0 and table[index] != RELEASED_BLOCK:
                self.pool.release(self.pool.blocks[table[index]])
                table[index] = RELEASED_BLOCK
                self._count_held(request, -1)
                index -= 1

    def _count_held(self, request: Request, change: int) -> None:
        request.num_held_blocks += change
        if request.num_promised_blocks:
            self.num_promised -= change

    def _publish(self, request: Request, index: int) -> None:
        """Makes a block of every table, just filled, findable behind those before it."""
        size = self._demand.block_size
        blocks = [self.pool.blocks[table[index]] for table in request.block_tables]
        tokens = tuple(request.token_ids[index * size : (index + 1) * size])
        self._move_to(request, self.pool.publish(blocks, (request.prefix or request.cache_salt, tokens)))

    def _move_to(self, request: Request, prefix: Prefix | None) -> None:
        """The request's full blocks end with this prefix now; it is held while the request runs."""
        if prefix is not None:
            prefix.num_holders += 1
        if request.prefix is not None:
            self.pool.let_go(request.prefix)
        request.prefix = prefix

    def _find_prefixes(self, request: Request) -> list[Prefix]:
        """The longest chain of prefixes that begins the request, short of its last token, and can be used."""
        found: list[Prefix] = []
        if not self._may_cache(request):
            return found
        size, windows = self._demand.block_size, self._demand.windows
        num_usable = 0
        complete_from = [0] * len(windows)  # by group: from here on every prefix found has a block
        for end in range(size, request.num_tokens, size):
            tokens = tuple(request.token_ids[end - size : end])
            prefix = self.pool.prefixes.get((found[-1] if found else request.cache_salt, tokens))
            if prefix is None:
                break
            found.append(prefix)
            for group in range(len(windows)):
                if group not in prefix.blocks:
                    complete_from[group] = len(found)
            if all(self._demand.first_block(w, end) >= c for w, c in zip(windows, complete_from, strict=True)):
                num_usable = len(found)
        return found[:num_usable]

    def _book(self) -> None:
        self._ledger.book_kv(
            reserved_bytes=self.pool.num_referenced * self.config.block_bytes,
            used_bytes=self.pool.num_used_tokens * self.config.slot_bytes,
            cached_bytes=self.pool.num_cached * self.config.block_bytes,
        )

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Compares all counts with what they count. For tests and for an idle engine.

        :param requests: all that hold blocks
        :raises EngineError: something doesn't add up (a bug)
        """
        requests = list(requests)
        held = [request.prefix for request in requests if request.prefix is not None]
        booked = self._ledger.snapshot()
        pool, config = self.pool, self.config
        given_back: list[int] = []
        tables: list[tuple[int, list[int]]] = []  # (group, what it holds)
        for request in requests:
            for group, (window, table) in enumerate(zip(self._demand.windows, request.block_tables, strict=True)):
                first = self._demand.first_block(window, request.num_computed_tokens)
                given_back += table[:first]
                tables.append((group, table[first:]))
        statements = pool.statements((table for _, table in tables), held) | {
            "what no token sees was given back": set(given_back) <= {RELEASED_BLOCK},
            "blocks serve their group": all(
                pool.blocks[block_id].group == group for group, table in tables for block_id in table
            ),
            "blocks that a request holds": all(
                sum(len(table) - table.count(RELEASED_BLOCK) for table in request.block_tables)
                == request.num_held_blocks
                for request in requests
            ),
            "no request holds too much": all(
                request.num_held_blocks <= self._demand.num_blocks(request.num_tokens) for request in requests
            ),
            "blocks promised": self.num_promised
            == sum(r.num_promised_blocks - r.num_held_blocks for r in requests if r.num_promised_blocks),
            "promises are kept": self.num_available >= 0,
            "ledger: reserved": booked.kv_reserved_bytes == pool.num_referenced * config.block_bytes,
            "ledger: used": booked.kv_used_bytes == pool.num_used_tokens * config.slot_bytes,
            "ledger: cached": booked.kv_cached_bytes == pool.num_cached * config.block_bytes,
        }
        wrong = [statement for statement, holds in statements.items() if not holds]
        if wrong:
            raise EngineError(f"the KV cache's books are wrong: {'; '.join(wrong)}")
