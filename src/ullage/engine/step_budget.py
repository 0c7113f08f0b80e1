"""How many tokens a step may run, so that no stream stalls while a long prompt is read.

A running stream gets a token a step, so the gap between its tokens is as long as the step. What a step will take is
predicted from those before it, and a prompt's chunk is made as large as fits under the target::

    seconds = fixed + rows * per row + pairs * per pair
              │       │                └ attention: a token and one before it that it looks at
              │       └ matrix products: a token that runs
              └ weights are read once, however many tokens there are

Chunks only decide when a token is computed, never which one comes out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ullage.engine.request import Request
from ullage.engine.step import ScheduledStep

LEARNING_RATE = 0.3
"""How much of an error the next prediction makes good: steps vary by a tenth or so, a slowdown lasts."""
LARGEST_EXCESS = 1.0
"""A step counts as longer than predicted by this share at most. Another process may hold one up for any time; none ever
ends far too early, so a prediction that is too high is believed to be."""
AIM = 0.7
"""The share of the target that is planned with. The rest is for what can't be predicted: with steps that vary by a
tenth, 99 in 100 keep the target."""
MIN_PREFILL_TOKENS = 16
"""What prompts get of every step beyond a token for each running request, even when the target can't be met: those who
wait for their first token must get on too, and so few rows take hardly longer than one, as the weights are read anyway.
"""


class StepTimeModel:
    """What a step takes, fitted to the steps there were. Constant memory and time.

    Each error is made good by the three parts in proportion to their shares in the prediction, so a part is only
    changed by steps in which it matters, and none becomes negative. (A projection as in the method of Kaczmarz, on the
    parts' logarithms.)
    """

    def __init__(self) -> None:
        # Proportions of a small model, a row being 1. The first step sets the unit, the next ones the rest.
        self._fixed_seconds = 32.0
        self._row_seconds = 1.0
        self._pair_seconds = 1 / 2000
        self.is_measured = False

    def predict(self, num_rows: float, num_pairs: float) -> float:
        """Seconds; meaningless unless ``is_measured``."""
        return self._fixed_seconds + self._row_seconds * num_rows + self._pair_seconds * num_pairs

    def learn(self, num_rows: float, num_pairs: float, seconds: float) -> None:
        predicted = self.predict(num_rows, num_pairs)
        error = seconds / predicted - 1
        fixed, row, pair = 1.0, 1.0, 1.0
        if self.is_measured:
            fixed = self._fixed_seconds / predicted
            row = self._row_seconds * num_rows / predicted
            pair = self._pair_seconds * num_pairs / predicted
            # Divided so that the three changes together move the prediction by the learning rate.
            error = LEARNING_RATE * min(error, LARGEST_EXCESS) / (fixed * fixed + row * row + pair * pair)
        self._fixed_seconds *= 1 + error * fixed
        self._row_seconds *= 1 + error * row
        self._pair_seconds *= 1 + error * pair
        self.is_measured = True

    def rows_within(self, seconds: float, context: int) -> int:
        """How many tokens of a prompt that has ``context`` tokens behind it can be added to a step for ``seconds``.

        The n-th of them looks at ``context + n`` tokens: n * (row + context * pair) + n² / 2 * pair = seconds.
        """
        if seconds <= 0:
            return 0
        first_seconds = self._row_seconds + context * self._pair_seconds
        return int(2 * seconds / (first_seconds + math.sqrt(first_seconds**2 + 2 * self._pair_seconds * seconds)))


class StepBudget:
    """Bounds the tokens of each step, by their time while anyone waits for the next token of an answer.

    :param target_seconds: the gap between a stream's tokens to stay under; 0: none, every step may be full
    :param max_num_tokens: of a full step
    """

    def __init__(self, target_seconds: float, max_num_tokens: int) -> None:
        self.target_seconds = target_seconds
        self.max_num_tokens = max_num_tokens
        self.model = StepTimeModel()

    def learn(self, step: ScheduledStep, seconds: float) -> None:
        """Takes in what a step took."""
        if not self.target_seconds or seconds <= 0:  # nobody asks, or the clock is too coarse to tell
            return
        num_rows, num_pairs = 0, 0.0
        for request in step.requests:
            length = len(request.token_ids)
            num_rows += length
            num_pairs += length * (request.num_computed_tokens + length / 2)
        self.model.learn(num_rows, num_pairs, seconds)

    def num_tokens(self, running: Sequence[Request], next_waiting: Request | None) -> int:
        """Tokens to run next, ``max_num_tokens`` at most. Below that, never less than one for each running request and
        ``MIN_PREFILL_TOKENS`` more.

        :param next_waiting: the request that may start next
        """
        decodes = [request for request in running if request.num_pending_tokens == 1]
        num_prefills = len(running) - len(decodes)
        if not (num_prefills or next_waiting) or not self.model.is_measured:
            return self.max_num_tokens
        if not any(request.num_output_tokens for request in decodes):  # one recomputed gains by haste, as prompts do
            return self.max_num_tokens
        seconds = self.model.predict(len(decodes), sum(request.num_computed_tokens for request in decodes))
        num_rows = self.model.rows_within(AIM * self.target_seconds - seconds, _context(running, next_waiting))
        return min(self.max_num_tokens, len(running) + max(MIN_PREFILL_TOKENS, num_rows - num_prefills))


def _context(running: Sequence[Request], next_waiting: Request | None) -> int:
    """Tokens behind the prompt tokens to be run, at most: for a waiting prompt that may be found in the prefix cache
    nearly whole.
    """
    contexts = [request.num_computed_tokens for request in running if request.num_pending_tokens > 1]
    if next_waiting is not None:
        contexts = contexts or [next_waiting.num_tokens]
    return max(contexts)
