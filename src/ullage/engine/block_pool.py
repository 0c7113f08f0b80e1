"""The blocks of the KV pool, and the prefixes that can be found again.

**Prefix caching.** When a block is full it is *published*: it joins the ``Prefix`` that stands for all tokens up to its
end, beside the blocks that hold the same tokens for the other layer groups. A prefix is found under the key ``(parent,
tokens)``: the prefix before it (for a first one: the request's salt), and the tokens it adds. The dictionary hashes a
key to find it and then compares the key itself, tokens and parent, so that two prompts whose hashes collide can't be
served each other's cache. A prefix is kept while a block, a longer prefix or a running request needs it.

**Eviction.** A published block without references waits in the free queue as *cached*. The front of the queue is
handed out first; what was freed last stands last (least recently used), tails before their heads, and blocks that
were never published go to the very front. ``tests/unit/engine/test_prefix_caching_example.py`` walks through all of it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

PrefixKey = tuple["Prefix | str", tuple[int, ...]]
"""(the prefix before, or the salt for a first block; tokens of one block)."""


@dataclass(slots=True, eq=False)
class Block:
    """One block of the pool."""

    block_id: int
    group: int = 0
    """Layer group whose keys and values it holds."""
    num_references: int = 0
    """Block tables it stands in."""
    num_tokens: int = 0
    """Tokens written. A block that isn't full has one owner."""
    prefix: Prefix | None = None
    """What it can be found by; None: not published."""


@dataclass(slots=True, eq=False, repr=False)
class Prefix:
    """All tokens from the first to the end of some block. Two prefixes are never the same text after the same salt."""

    key: PrefixKey
    blocks: dict[int, Block] = field(default_factory=dict)
    """Those that hold its last tokens, by layer group."""
    num_holders: int = 0
    """Its blocks, the prefixes that continue it, the running requests whose full blocks end with it."""


class BlockPool:
    """Owns all blocks. Counts as it goes, so that the books cost nothing to read."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self.free_queue: OrderedDict[int, Block] = OrderedDict((block.block_id, block) for block in self.blocks)
        self.prefixes: dict[PrefixKey, Prefix] = {}
        self.num_cached = 0
        """Published blocks in the free queue."""
        self.num_used_tokens = 0
        """Tokens written in blocks that are referenced, once for each layer group."""
        self.num_shares: Counter[int] = Counter()
        """By layer group: references to its blocks beyond the first of each."""

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, the cached ones among them."""
        return len(self.free_queue)

    @property
    def num_referenced(self) -> int:
        return len(self.blocks) - len(self.free_queue)

    def allocate(self, group: int) -> Block | None:
        """An empty block with one reference; None when there is none. Evicts the cached prefix it may have held."""
        if not self.free_queue:
            return None
        _, block = self.free_queue.popitem(last=False)
        if block.prefix is not None:
            del block.prefix.blocks[block.group]
            self.let_go(block.prefix)
            self.num_cached -= 1
        block.group, block.num_references, block.num_tokens, block.prefix = group, 1, 0, None
        return block

    def share(self, block: Block) -> None:
        """One more reference to a published block, wherever it is."""
        assert block.prefix is not None, "only published blocks are shared"
        if block.num_references == 0:
            del self.free_queue[block.block_id]
            self.num_cached -= 1
            self.num_used_tokens += block.num_tokens
        else:
            self.num_shares[block.group] += 1
        block.num_references += 1

    def release(self, block: Block) -> None:
        """One reference less; the last one puts the block into the free queue."""
        assert block.num_references > 0, f"block {block.block_id} released once too often"
        block.num_references -= 1
        if block.num_references > 0:
            self.num_shares[block.group] -= 1
            return
        self.num_used_tokens -= block.num_tokens
        self.free_queue[block.block_id] = block
        if block.prefix is not None:
            self.num_cached += 1
        else:
            self.free_queue.move_to_end(block.block_id, last=False)

    def write(self, block: Block, num_tokens: int) -> None:
        """Notes that ``num_tokens`` more were written into a block."""
        assert block.num_references == 1
        assert block.num_tokens + num_tokens <= self.block_size
        block.num_tokens += num_tokens
        self.num_used_tokens += num_tokens

    def publish(self, blocks: Sequence[Block], key: PrefixKey) -> Prefix:
        """Makes full blocks, one of each layer group, findable. One whose twin is already (equal prompts in one step)
        stays private.
        """
        prefix = self.prefixes.get(key)
        if prefix is None:
            prefix = self.prefixes[key] = Prefix(key)
            if isinstance(key[0], Prefix):
                key[0].num_holders += 1
        for block in blocks:
            assert block.num_tokens == self.block_size
            assert block.prefix is None
            if block.group not in prefix.blocks:
                prefix.blocks[block.group], block.prefix = block, prefix
                prefix.num_holders += 1
        return prefix

    def let_go(self, prefix: Prefix) -> None:
        """One holder less. A prefix without one is forgotten, and no longer holds the prefix before it."""
        while True:
            prefix.num_holders -= 1
            if prefix.num_holders > 0:
                return
            del self.prefixes[prefix.key]
            if not isinstance(prefix.key[0], Prefix):
                return
            prefix = prefix.key[0]

    def statements(self, block_tables: Iterable[Sequence[int]], held: Iterable[Prefix]) -> dict[str, bool]:
        """What must be true, and whether it is: all counts are compared with what they count.

        :param block_tables: all there are, without the entries that were given back
        :param held: the prefix of each running request that has one
        """
        references = Counter(chain.from_iterable(block_tables))
        referenced = [block for block in self.blocks if block.num_references > 0]
        published = [block for block in self.blocks if block.prefix is not None]
        parents = (prefix.key[0] for prefix in self.prefixes.values())
        holders = Counter(chain((p for p in parents if isinstance(p, Prefix)), (b.prefix for b in published), held))
        shares = Counter(dict.fromkeys(self.num_shares, 0))
        for block in referenced:
            shares[block.group] += block.num_references - 1
        found = {block.block_id for prefix in self.prefixes.values() for block in prefix.blocks.values()}
        return {
            "free + referenced = total": self.num_free + len(referenced) == len(self.blocks),
            "reference counts = block tables": references == {b.block_id: b.num_references for b in referenced},
            "shares": all(shares[group] == self.num_shares[group] for group in shares),
            "no free block is referenced": all(b.num_references == 0 for b in self.free_queue.values()),
            "published blocks are full": all(b.num_tokens == self.block_size for b in published),
            "published blocks are found": found == {b.block_id for b in published}
            and all(b.prefix is not None and b.prefix.blocks[b.group] is b for b in published),
            "every key leads to its prefix": all(key is p.key for key, p in self.prefixes.items()),
            "prefixes are held": holders == {p: p.num_holders for p in self.prefixes.values()},
            "cached": self.num_cached == sum(b.num_references == 0 for b in published),
            "used tokens": self.num_used_tokens == sum(b.num_tokens for b in referenced),
        }
