"""How long streams waited from one token to the next, counted where every token passes."""

from __future__ import annotations

from bisect import bisect_left

GAP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets; one more holds what is longer."""


class TokenGaps:
    """A histogram of seconds."""

    __slots__ = ("counts", "total_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(GAP_SECONDS) + 1)
        """By bucket, each gap in one."""
        self.total_seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(GAP_SECONDS, seconds)] += 1
        self.total_seconds += seconds
