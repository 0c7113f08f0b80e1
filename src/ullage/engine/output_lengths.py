"""How long outputs become: learned from those that ended, so that blocks are kept for what comes, not for what may.

Clients ask for far more tokens than they use, so the share of ``max_tokens`` that was really generated is what is
learned: a histogram for each order of magnitude of ``max_tokens`` (short and long limits are used differently), in
which an older output counts less. What is expected of a request that has n tokens already is the mean over outputs
that became longer than that.

Source: the distribution of past output lengths, conditional on those so far, is what the Past-Future scheduler predicts
with (Gong et al. 2025, arXiv:2507.10150); it samples from it, here its mean is taken.

Memory: ``NUM_SHARES`` numbers for each power of two of ``max_tokens``, whatever comes.
"""

from __future__ import annotations

import math

NUM_SHARES = 20
"""Columns of a histogram: shares of ``max_tokens``, each a twentieth wide."""
MEMORY = 200
"""So many outputs after it, one counts 1/e of the newest."""
FIRST_SHARE = 0.5
"""What an output is taken to use before any has ended."""
FIRST_WEIGHT = 2.0
"""Outputs that this guess counts as."""


class OutputLengths:
    """The distribution of output lengths. Constant memory and time."""

    def __init__(self) -> None:
        self._histograms: dict[int, list[float]] = {}
        self._new_weight = 1.0
        """Grows instead of all old weights shrinking; histograms are scaled down before it overflows."""

    def learn(self, max_tokens: int, num_output_tokens: int) -> None:
        """Takes in an output that ended by itself or by its limit. One that was left halfway says nothing."""
        histogram = self._histogram_for(max_tokens)
        column = math.ceil(num_output_tokens * NUM_SHARES / max_tokens) - 1
        histogram[min(max(column, 0), NUM_SHARES - 1)] += self._new_weight
        self._new_weight *= 1 + 1 / MEMORY
        if self._new_weight > 1e100:
            self._histograms = {k: [weight / self._new_weight for weight in h] for k, h in self._histograms.items()}
            self._new_weight = 1.0

    def expect(self, max_tokens: int, num_output_tokens: int) -> int:
        """How many output tokens a request is likely to have in the end: more than it has now, ``max_tokens`` at most.

        :param num_output_tokens: those it has now
        """
        histogram = self._histogram_for(max_tokens)
        first = num_output_tokens * NUM_SHARES // max_tokens  # the column that one more token may fall into
        total = sum(histogram[first:])
        if total <= 0:  # nobody ever went so far: nothing is known but the limit
            return max_tokens
        mean = sum((column + 1) * weight for column, weight in enumerate(histogram[first:], first)) / total
        return min(max_tokens, max(num_output_tokens + 1, math.ceil(mean * max_tokens / NUM_SHARES)))

    def _histogram_for(self, max_tokens: int) -> list[float]:
        histogram = self._histograms.get(max_tokens.bit_length())
        if histogram is None:
            histogram = self._histograms[max_tokens.bit_length()] = [0.0] * NUM_SHARES
            histogram[math.ceil(FIRST_SHARE * NUM_SHARES) - 1] = FIRST_WEIGHT * self._new_weight
        return histogram
