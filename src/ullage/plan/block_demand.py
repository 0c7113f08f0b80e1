"""How many blocks of the KV pool a request needs. The planner and the KV cache count by the same rule.

A request has one block table for each layer group. In a group without a window it holds blocks for all its tokens. In a
group with a window it holds the blocks from the first token that the next one can see, and at most as many as window
and step together can touch: those behind the window are given back, those far ahead aren't taken yet::

    tokens      0 ............. computed ........................ num_tokens
    no window   [####][####][####][####][####][####][####][####][####]
    window                  [####][####][####][####]                      at most ``_most_in_window`` blocks
                            ^ first block that the token at ``computed`` sees

So blocks for any step are there before it begins, and no request ever holds more than ``num_blocks``. As every accepted
request fits into the pool on its own, the oldest always gets on, if need be with the blocks of all others.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockDemand:
    """The rule for one model and one engine."""

    block_size: int
    """Tokens in a block."""
    windows: tuple[int | None, ...] = (None,)
    """Sliding window of each layer group, in tokens; None: its layers see everything."""
    max_step_tokens: int = 1
    """Tokens of one request in one step at most; matters to groups with a window only."""

    @property
    def num_groups(self) -> int:
        return len(self.windows)

    def first_block(self, window: int | None, position: int) -> int:
        """Index of the first block that a token at this position, or any after it, can see."""
        return 0 if window is None else max(0, position + 1 - window) // self.block_size

    def table_length(self, window: int | None, num_computed_tokens: int, num_tokens: int) -> int:
        """Entries of a group's block table before a step, given-back ones included."""
        length = -(-num_tokens // self.block_size)
        if window is None:
            return length
        return min(length, self.first_block(window, num_computed_tokens) + self._most_in_window(window))

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that a request of so many tokens holds at one time, at most."""
        return self._num_blocks_of(-(-num_tokens // self.block_size))

    def most_tokens(self, num_blocks: int, *, at_most: int) -> int:
        """Tokens of the largest request that so many blocks are enough for; no more than ``at_most``."""
        lengths = range(1, -(-at_most // self.block_size) + 1)
        return min(at_most, self.block_size * bisect_right(lengths, num_blocks, key=self._num_blocks_of))

    def _num_blocks_of(self, length: int) -> int:
        return sum(length if window is None else min(length, self._most_in_window(window)) for window in self.windows)

    def _most_in_window(self, window: int) -> int:
        """Blocks that ``window - 1`` tokens and a whole step after them can touch, wherever in a block they begin."""
        num_tokens = window - 1 + self.max_step_tokens
        return (num_tokens + 2 * self.block_size - 2) // self.block_size
