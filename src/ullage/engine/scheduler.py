"""Decides what runs in each step.

There is no prefill phase and no decode phase: ``num_computed_tokens`` of a request catches up with its tokens, a chunk
at a time for a long prompt, one token at a time after that. A prefix hit, and the way back after a preemption, only
begin elsewhere. In one step, of as many tokens as ``step_budget.py`` allows:

1. Each running request, the oldest first, runs at least one token: nobody who holds blocks ever stands still. Tokens
   left over in the step go to prompts, half of them to each in its turn; what is left in the end, to the newest of
   them that can use it. A request that needs a block when none is free takes those of the newest, which
   goes back to the front of the queue and is computed again later, its output kept. So the oldest always gets on, and
   in the end everyone.
2. Waiting requests are admitted in the order they came, with blocks for all tokens they have, or as many as a sliding
   window lets them hold: from then on a prefill takes only as many as it gives back. Not in a step that preempted.

So ``running`` followed by ``waiting`` is always in the order of arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ullage.base.errors import ConfigError
from ullage.engine.kv_cache import KVCacheManager
from ullage.engine.request import Request, RequestStatus, TokenOutput
from ullage.engine.step import SampledToken, ScheduledRequest, ScheduledStep
from ullage.engine.step_budget import StepBudget


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How much runs at once, and how much may wait."""

    max_model_len: int
    """Prompt + output tokens of one request at most."""
    max_num_seqs: int = 32
    """Requests in one step at most."""
    max_num_batched_tokens: int = 512
    """Tokens in one step at most; at least ``max_num_seqs``, so that every running request gets one."""
    max_waiting_requests: int = 256
    """Requests accepted beyond ``max_num_seqs``; one more is refused."""
    target_itl_ms: int = 100
    """Milliseconds between the tokens of a running stream to stay under while prompts are read; 0: no target."""

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_waiting_requests"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.target_itl_ms < 0:
            raise ConfigError(f"target_itl_ms must be at least 0, got {self.target_itl_ms}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs ({self.max_num_seqs})",
                hint="each running request needs one token in every step: raise the first or lower the second",
            )

    @property
    def max_requests(self) -> int:
        """Requests accepted at one time."""
        return self.max_num_seqs + self.max_waiting_requests


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since the engine began."""

    num_steps: int = 0
    num_prompt_tokens: int = 0
    """Prompt tokens computed, again after a preemption too."""
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_prefix_hit_tokens: int = 0
    """Tokens found in the prefix cache instead of computed."""


class Scheduler:
    """Owns the requests. ``schedule`` and ``update`` alternate; requests may come and go in between."""

    def __init__(self, config: SchedulerConfig, kv_cache: KVCacheManager) -> None:
        self.config = config
        self.kv_cache = kv_cache
        self.requests: dict[int, Request] = {}
        """All that are waiting or running."""
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.counters = SchedulerCounters()
        self.step_budget = StepBudget(config.target_itl_ms / 1000, config.max_num_batched_tokens)

    def add(self, request: Request) -> None:
        """Appends a request that passed ``RequestLimits``; ids must rise."""
        assert request.status is RequestStatus.WAITING
        assert request.request_id not in self.requests
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def abort(self, request_id: int) -> bool:
        """Ends a request at once, even between ``schedule`` and ``update``: its blocks are free, no output follows.

        :return: False when it had ended already
        """
        request = self.requests.get(request_id)
        if request is None:
            return False
        request.finish_reason = "abort"
        self._finish(request)
        return True

    def schedule(self) -> ScheduledStep:
        """What to run next; empty only when there is nothing to do."""
        num_tokens: dict[Request, int] = {}
        budget = self.step_budget.num_tokens(self.running, self.waiting)
        spare = budget - len(self.running)  # one token is set aside for each
        num_preemptions = self.counters.num_preemptions

        for request in self.running:  # preemption only takes from the end, where this loop hasn't been
            if not self._make_room_for(request):
                break
            num_tokens[request] = _chunk(request, spare + 1)
            spare -= num_tokens[request] - 1

        while spare > 0 and num_preemptions == self.counters.num_preemptions and self._admit_next():
            request = self.running[-1]
            num_tokens[request] = _chunk(request, spare)
            spare -= num_tokens[request]

        for request in reversed(num_tokens):  # what nobody took
            num_more = min(spare, request.num_pending_tokens - num_tokens[request])
            num_tokens[request] += num_more
            spare -= num_more

        return ScheduledStep(tuple(_scheduled(request, count) for request, count in num_tokens.items()))

    def update(self, step: ScheduledStep, sampled: Sequence[SampledToken]) -> list[TokenOutput]:
        """Takes in what a step computed. Requests aborted meanwhile are passed over."""
        self.counters.num_steps += 1
        outputs: list[TokenOutput] = []
        answers = iter(sampled)
        for scheduled in step.requests:
            token = next(answers) if scheduled.needs_logits else None
            request = self.requests.get(scheduled.request_id)
            if request is None:
                continue
            self._count_prompt_tokens(scheduled)
            self.kv_cache.advance(request, len(scheduled.token_ids))
            if token is not None:
                outputs.append(self._append(request, token))
        assert next(answers, None) is None, "the runner sampled more than was asked for"
        return outputs

    def _make_room_for(self, request: Request) -> bool:
        """Preempts the newest until the request has the block it needs; False when that was the request itself."""
        while self.kv_cache.extend(request) is None:
            newest = self.running.pop()
            self.kv_cache.free(newest)
            newest.status = RequestStatus.WAITING
            newest.num_preemptions += 1
            self.waiting.appendleft(newest)
            self.counters.num_preemptions += 1
            if newest is request:
                return False
        return True

    def _admit_next(self) -> bool:
        """Moves the first waiting request to the running ones, if there is a seat and enough blocks for it and one more
        (of each layer group) for each of the others: it shouldn't be preempted as soon as they grow.
        """
        if not self.waiting or len(self.running) >= self.config.max_num_seqs:
            return False
        request = self.waiting[0]
        num_cached_tokens = self.kv_cache.admit(request, keep_free=len(self.running))
        if num_cached_tokens is None:
            return False
        self.counters.num_prefix_hit_tokens += num_cached_tokens
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_cached_tokens
        request.status = RequestStatus.RUNNING
        self.running.append(self.waiting.popleft())
        return True

    def _append(self, request: Request, token: SampledToken) -> TokenOutput:
        assert token.request_id == request.request_id, "the runner answered in another order"
        if token.token_id is None:
            request.finish_reason = "error"
        else:
            request.append(token.token_id)
            self.counters.num_generated_tokens += 1
        if request.finish_reason is not None:
            self._finish(request)
        return TokenOutput(
            request_id=request.request_id,
            token_id=token.token_id,
            logprob=token.logprob,
            top_logprobs=token.top_logprobs,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=request.num_cached_tokens,
            num_output_tokens=request.num_output_tokens,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            error=token.error,
        )

    def _finish(self, request: Request) -> None:
        del self.requests[request.request_id]
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self.kv_cache.free(request)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED

    def _count_prompt_tokens(self, scheduled: ScheduledRequest) -> None:
        num_left = scheduled.num_prompt_tokens - scheduled.num_computed_tokens
        self.counters.num_prompt_tokens += max(0, min(num_left, len(scheduled.token_ids)))


def _chunk(request: Request, num_available: int) -> int:
    """How many tokens of a request to run at first: a long prompt leaves half to those behind it, so that a short one
    gets past.
    """
    return min(request.num_pending_tokens, -(-num_available // 2))


def _scheduled(request: Request, num_tokens: int) -> ScheduledRequest:
    """The next ``num_tokens`` tokens of a request. Lists are lent, not copied: none changes before ``update``."""
    start = request.num_computed_tokens
    return ScheduledRequest(
        request_id=request.request_id,
        token_ids=request.token_ids[start : start + num_tokens],
        num_computed_tokens=start,
        block_tables=request.block_tables,
        sampling=request.sampling,
        seed=request.seed,
        needs_logits=num_tokens == request.num_pending_tokens,
        history=request.token_ids,
        num_prompt_tokens=request.num_prompt_tokens,
        banned_token_ids=request.banned_token_ids,
    )
