"""Decides what runs in each step.

There is no prefill phase and no decode phase: ``num_computed_tokens`` of a request catches up with its tokens, a chunk
at a time for a long prompt, one token at a time after that. A prefix hit, and the way back after a preemption, only
begin elsewhere. In one step, of as many tokens as ``step_budget.py`` allows:

1. Each running request, the most senior first, runs at least one token: nobody who holds blocks ever stands still.
   Tokens left over in the step go to prompts, half of them to each in its turn; what is left in the end, to the newest
   of them that can use it. A request that needs a block when none is free takes those of the least senior, which goes
   back to the queue and is computed again later, its output kept.
2. Waiting requests start in the order of ``waiting_queue.py``, when there are blocks for all tokens that they have and
   for what they and the running ones are expected to become (``output_lengths.py``, ``block_forecast.py``). Not in a
   step that preempted.

**Everyone ends.** A request that was preempted ``max_preemptions`` times is *protected*: it starts again only when it
can be promised all blocks that it may ever hold (``kv_cache.py``), so it is never preempted again. With 0, the policy
``guaranteed``, that holds for all. So each request is preempted a bounded number of times, and in every step all that
run get on by a token: what runs, ends. Who needs a block that isn't there gives up its own in the end, so no step waits
for another. The first in the queue starts at the latest when nothing runs any more, as every accepted request fits into
the pool on its own. And nothing stays before the first for ever: see ``_start_next``.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from ullage.base.errors import ConfigError, DeadlineError, EngineError, InvalidRequestError, UllageError
from ullage.engine.block_forecast import most_blocks
from ullage.engine.client import RequestTimes
from ullage.engine.deadlines import Deadlines
from ullage.engine.kv_cache import KVCacheManager
from ullage.engine.output_lengths import OutputLengths
from ullage.engine.request import Request, RequestStatus, TokenOutput
from ullage.engine.step import SampledToken, ScheduledRequest, ScheduledStep
from ullage.engine.step_budget import StepBudget
from ullage.engine.token_gaps import TokenGaps
from ullage.engine.waiting_queue import WaitingQueue

AbortReason = Literal["client", "deadline", "shutdown"]

MAX_TIMES_PASSED = 16
"""So many requests may start before one that was first and too large for the blocks there were. Then none does: blocks
that become free are kept until it starts. So small ones use the room meanwhile, and don't starve the large one."""
LOOK_AHEAD = 4
"""Waiting requests that are tried in one step when the first doesn't fit: each is looked up in the prefix cache."""
KEPT_FOR_OTHERS = 8
"""One in so many seats and blocks isn't given to a tenant that has more than its share already, while others are
present: so that they don't have to wait until one of its requests ends."""


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
    max_preemptions: int = 3
    """How often one request may have to give up its blocks to others; 0: never, all that it may need are promised to it
    when it starts."""
    max_waiting_tokens: int | None = None
    """Prompt tokens of waiting requests; None: as many as those requests have."""
    max_waiting_requests_per_tenant: int | None = None
    """None: one tenant may fill the queue."""
    max_waiting_tokens_per_tenant: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_waiting_requests"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("target_itl_ms", "max_preemptions"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("max_waiting_tokens", "max_waiting_requests_per_tenant", "max_waiting_tokens_per_tenant"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
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
    num_aborts: dict[AbortReason, int] = field(default_factory=dict)
    """Requests that ended early, by reason."""
    token_gaps: TokenGaps = field(default_factory=TokenGaps)


class Scheduler:
    """Owns the requests. ``schedule`` and ``update`` alternate; requests may come and go in between."""

    def __init__(
        self, config: SchedulerConfig, kv_cache: KVCacheManager, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self.kv_cache = kv_cache
        self.requests: dict[int, Request] = {}
        """All that are waiting or running."""
        self.waiting = WaitingQueue(clock)
        self.running: list[Request] = []
        """The most senior first."""
        self.started: list[int] = []
        """Those that left the queue for the first time; whoever counts them empties it."""
        self.counters = SchedulerCounters()
        self.output_lengths = OutputLengths()
        self.step_budget = StepBudget(config.target_itl_ms / 1000, config.max_num_batched_tokens)
        self._is_blocked = False
        """Nobody who waits could start, and nothing has changed that since."""
        self._deadlines = Deadlines(self.requests)
        self._clock = clock

    def add(self, request: Request) -> None:
        """Appends a request that passed ``RequestLimits``; ids must rise."""
        assert request.status is RequestStatus.WAITING
        assert request.request_id not in self.requests
        request.is_protected = self.config.max_preemptions == 0
        self.requests[request.request_id] = request
        self.waiting.add(request)
        self._is_blocked = False
        self._deadlines.add(request)

    def abort(self, request_id: int, reason: AbortReason = "client") -> RequestTimes | None:
        """Ends a request at once, even between ``schedule`` and ``update``: its blocks are free, no output follows.

        :return: None when it had ended already
        """
        request = self.requests.get(request_id)
        if request is None:
            return None
        request.finish_reason = "abort"
        if not request.is_probe:
            self.counters.num_aborts[reason] = self.counters.num_aborts.get(reason, 0) + 1
        return self._finish(request)

    def stop(self, request_id: int) -> RequestTimes:
        """Ends a running request whose text is complete, as its last token would have."""
        request = self.requests[request_id]
        request.finish_reason = "stop"
        return self._finish(request)

    def end_expired(self) -> list[TokenOutput]:
        """Ends the requests whose time is up, waiting or running; their last outputs."""
        now = self._clock()
        outputs = []
        for request in self._deadlines.take_expired(now):
            ran = "it never left the queue" if request.started_at is None else "it was running"
            error = DeadlineError(
                f"the request had {request.deadline - request.arrived_at:g} s, and they are over: {ran}",
                hint="allow more time, ask for fewer tokens, or try when there is less to do",
            )
            times = self.abort(request.request_id, "deadline")
            request.finish_reason = "error"
            outputs.append(_output(request, SampledToken(request.request_id, None), error, times))
        return outputs

    def schedule(self) -> ScheduledStep:
        """What to run next; empty only when there is nothing to do."""
        num_tokens: dict[Request, int] = {}
        budget = self.step_budget.num_tokens(self.running, self.waiting.first)
        spare = budget - len(self.running)  # one token is set aside for each
        num_preemptions = self.counters.num_preemptions

        for request in self.running:  # preemption only takes from the end, where this loop hasn't been
            if not self._make_room_for(request):
                break
            num_tokens[request] = _chunk(request, spare + 1)
            spare -= num_tokens[request] - 1

        while spare > 0 and num_preemptions == self.counters.num_preemptions:
            started = self._start_next()
            if started is None:
                break
            num_tokens[started] = _chunk(started, spare)
            spare -= num_tokens[started]

        for request in reversed(num_tokens):  # what nobody took
            num_more = min(spare, request.num_pending_tokens - num_tokens[request])
            num_tokens[request] += num_more
            spare -= num_more

        return ScheduledStep(tuple(_scheduled(request, count) for request, count in num_tokens.items()))

    def update(self, step: ScheduledStep, sampled: Sequence[SampledToken]) -> list[TokenOutput]:
        """Takes in what a step computed. Requests aborted meanwhile are passed over."""
        self.counters.num_steps += 1
        now = self._clock()
        outputs: list[TokenOutput] = []
        answers = iter(sampled)
        for scheduled in step.requests:
            token = next(answers) if scheduled.needs_logits else None
            request = self.requests.get(scheduled.request_id)
            if request is None:
                continue
            if not request.is_probe:
                self._count_prompt_tokens(scheduled)
            self.kv_cache.advance(request, len(scheduled.token_ids))
            if token is not None:
                outputs.append(self._append(request, token, now))
        assert next(answers, None) is None, "the runner sampled more than was asked for"
        return outputs

    def _make_room_for(self, request: Request) -> bool:
        """Preempts the least senior until the request has the block it needs; False: that was the request itself."""
        while self.kv_cache.extend(request) is None:
            last = self.running.pop()
            assert not last.is_protected, "a request was to give up blocks that it was promised"
            self.kv_cache.free(last)
            last.status = RequestStatus.WAITING
            last.num_preemptions += 1
            last.is_protected = last.num_preemptions >= self.config.max_preemptions
            self.waiting.put_back(last)
            self._is_blocked = False
            self.counters.num_preemptions += 1
            if last is request:
                return False
        return True

    def _start_next(self) -> Request | None:
        """Moves the first waiting request that may and can to the running ones.

        One that is too large for the blocks there are lets others pass, ``MAX_TIMES_PASSED`` at most. As its tenant's
        counter stands still meanwhile and those of the others grow, it stays the first of its class.
        """
        if len(self.running) >= self.config.max_num_seqs or self._is_blocked:
            return None
        too_large: list[Request] = []
        for request in self.waiting:
            num_kept = self._num_kept_from(request)
            if len(self.running) + num_kept >= self.config.max_num_seqs:
                continue
            if self._start(request, keep_free=num_kept and len(self.kv_cache.pool.blocks) // KEPT_FOR_OTHERS):
                if too_large:
                    too_large[0].num_times_passed += 1
                return request
            too_large.append(request)
            if too_large[0].num_times_passed >= MAX_TIMES_PASSED or len(too_large) == LOOK_AHEAD:
                break
        self._is_blocked = bool(too_large)
        return None

    def _num_kept_from(self, request: Request) -> int:
        """Seats that this request must leave to other tenants: none, unless its own has its share of them.

        Even then none when its tenant is behind in tokens, by more than a step: tokens are what is shared fairly.
        """
        tenant = self.waiting.tenant_of(request)
        share = self.waiting.share_of(tenant) * self.config.max_num_seqs
        if request.num_preemptions or tenant.num_running + 1 <= max(1.0, share):
            return 0
        is_behind = self.waiting.lead_of(tenant) < -self.config.max_num_batched_tokens
        return 0 if is_behind else -(-self.config.max_num_seqs // KEPT_FOR_OTHERS)

    def _start(self, request: Request, keep_free: int) -> bool:
        """False: there aren't blocks enough for what it and those that run are expected to become."""
        demand = self.kv_cache.config.demand
        growing = [other for other in self.running if not other.is_protected]  # the KV cache keeps the others' promises
        expected = [self._expect(other) for other in growing]
        num_held = sum(other.num_held_blocks for other in growing)
        if request.is_protected:
            num_blocks = demand.num_blocks(request.num_prompt_tokens + request.sampling.max_tokens)
            keep_free += max(0, most_blocks(demand, expected) - num_held)
        else:
            num_blocks = most_blocks(demand, [*expected, self._expect(request)]) - num_held
        num_cached_tokens = self.kv_cache.admit(
            request, num_blocks=num_blocks, promised=request.is_protected, keep_free=keep_free
        )
        if num_cached_tokens is None:
            return False
        self.counters.num_prefix_hit_tokens += num_cached_tokens
        self.waiting.start(request)
        if request.started_at is None:
            request.num_cached_tokens = num_cached_tokens
            request.started_at = self._clock()
            self.started.append(request.request_id)
        request.status = RequestStatus.RUNNING
        insort(self.running, request, key=attrgetter("seniority"))
        return True

    def _expect(self, request: Request) -> tuple[int, int]:
        """(tokens that it is expected to get still, those it has)"""
        if request.num_tokens >= request.num_expected_tokens:
            num_output_tokens = self.output_lengths.expect(request.sampling.max_tokens, request.num_output_tokens)
            request.num_expected_tokens = request.num_prompt_tokens + num_output_tokens
        return request.num_expected_tokens - request.num_tokens, request.num_tokens

    def _append(self, request: Request, token: SampledToken, now: float) -> TokenOutput:
        assert token.request_id == request.request_id, "the runner answered in another order"
        if token.token_id is None:
            request.finish_reason = "error"
        else:
            request.append(token.token_id)
            self._note_token(request, now)
            self.waiting.charge_output_token(request)
        times = None if request.finish_reason is None else self._finish(request)
        error_class = InvalidRequestError if token.is_requests_fault else EngineError
        return _output(request, token, error_class(token.error) if token.error else None, times)

    def _note_token(self, request: Request, now: float) -> None:
        if request.last_token_at is None:
            request.first_token_at = now
        elif not request.is_probe:
            self.counters.token_gaps.add(now - request.last_token_at)
        request.last_token_at = now
        self.counters.num_generated_tokens += not request.is_probe

    def _finish(self, request: Request) -> RequestTimes:
        del self.requests[request.request_id]
        self._is_blocked = False
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self.kv_cache.free(request)
            self.waiting.end(request)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        if request.finish_reason in ("stop", "length") and not request.is_probe:
            self.output_lengths.learn(request.sampling.max_tokens, request.num_output_tokens)
        return RequestTimes(
            arrived_at=request.arrived_at,
            started_at=request.started_at,
            first_token_at=request.first_token_at,
            finished_at=self._clock(),
            num_preemptions=request.num_preemptions,
        )

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


def _output(
    request: Request, token: SampledToken, error: UllageError | None, times: RequestTimes | None
) -> TokenOutput:
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
        error=error,
        times=times,
    )
