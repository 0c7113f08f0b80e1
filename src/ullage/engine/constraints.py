"""Keeps constrained requests to their constraints: which tokens each may take next, and which it took.

Lies between ``schedule`` and ``execute``. A matcher follows its request's output, which a preemption keeps; prompts,
chunks and cached prefixes don't concern it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from llguidance.numpy import fill_next_token_bitmask_par

from ullage.engine.grammars import MaskExecutor, Matcher
from ullage.engine.request import TokenOutput
from ullage.engine.step import SampledToken, ScheduledRequest, ScheduledStep


class Constraints:
    """The matchers of all constrained requests. Belongs to the engine's thread."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // 32)
        self._matchers: dict[int, Matcher] = {}
        self._executor: MaskExecutor | None = None

    def add(self, request_id: int, matcher: Matcher) -> None:
        self._matchers[request_id] = matcher

    def discard(self, request_id: int) -> None:
        self._matchers.pop(request_id, None)

    def discard_ended(self, outputs: Iterable[TokenOutput]) -> None:
        for output in outputs:
            if output.finish_reason is not None:
                self.discard(output.request_id)

    def __len__(self) -> int:
        return len(self._matchers)

    def mask(self, step: ScheduledStep) -> ScheduledStep:
        """The step with ``token_mask`` set where a constrained request gets a token.

        A matcher that can't go on allows nothing: the runner then ends that request alone.
        """
        if not self._matchers:
            return step
        rows = {
            request.request_id: row
            for row, request in enumerate(r for r in step.requests if r.needs_logits and r.request_id in self._matchers)
        }
        if not rows:
            return step
        masks = np.zeros((len(rows), self._num_words), np.int32)
        able = [(matcher, rows[i]) for i in rows if not (matcher := self._matchers[i]).is_error()]
        if able:
            fill_next_token_bitmask_par(self._threads(), able, masks)
        for matcher, row in able:
            if matcher.is_error():  # it met a limit just now, and the library allows the end then
                masks[row] = 0
        return ScheduledStep(
            tuple(
                _masked(request, masks[rows[request.request_id]].tobytes()) if request.request_id in rows else request
                for request in step.requests
            )
        )

    def follow(self, sampled: Sequence[SampledToken]) -> list[SampledToken]:
        """Takes in what was chosen; a request without a token is told what its constraint has to do with it."""
        return [self._follow(token) for token in sampled] if self._matchers else list(sampled)

    def _follow(self, token: SampledToken) -> SampledToken:
        matcher = self._matchers.get(token.request_id)
        if matcher is None:
            return token
        if token.token_id is not None:
            matcher.consume_token(token.token_id)
            return token
        if matcher.is_error():
            return replace(token, error="the constraint became too complex to follow", is_requests_fault=True)
        return replace(token, error=f"the constraint leaves no token to choose: {token.error}")

    def _threads(self) -> MaskExecutor:
        if self._executor is None:
            self._executor = MaskExecutor()
        return self._executor


def _masked(request: ScheduledRequest, mask: bytes) -> ScheduledRequest:
    """``min_tokens`` holds as long as the constraint leaves a choice: a text that must end ends."""
    banned = request.banned_token_ids
    if banned and not _leaves_any(mask, banned):
        banned = ()
    return replace(request, token_mask=mask, banned_token_ids=banned)


def _leaves_any(mask: bytes, banned_token_ids: Sequence[int]) -> bool:
    left = bytearray(mask)
    for token_id in banned_token_ids:
        left[token_id // 8] &= ~(1 << token_id % 8)
    return any(left)
