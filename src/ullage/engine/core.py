"""The engine, in tokens. The page to read first.

Three classes lie around each other: ``EngineCore`` here knows tokens; ``TextEngine`` in ``output.py`` makes text of
them; ``EmbeddedEngine`` in ``embedded.py`` gives both a thread, takes requests in and refuses those that can't be.

``step`` is all of it: the scheduler says what to run, the runner runs it, the scheduler takes the result in. What they
say to each other stands in ``step.py``; who runs when, in ``scheduler.py``; where keys and values lie, in
``kv_cache.py``; how large a step may be, in ``step_budget.py``; which tokens a constraint allows, in
``constraints.py``.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from ullage.engine.client import EngineFigures, EngineStatus, RequestTimes
from ullage.engine.constraints import Constraints
from ullage.engine.grammars import Matcher
from ullage.engine.kv_cache import KVCacheConfig, KVCacheManager
from ullage.engine.request import Request, RequestLimits, TokenOutput
from ullage.engine.runner import ModelRunner
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.scheduler import AbortReason, Scheduler, SchedulerConfig
from ullage.plan.ledger import MemoryLedger


class EngineCore:
    """Scheduler, KV cache and runner. Belongs to one thread; only ``limits`` may be used from others.

    The same requests in the same order give the same tokens, whatever runs beside them.

    :param eos_token_ids: the model's own end-of-sequence ids
    :param seed: from which requests that bring no seed get theirs
    :param clock: seconds, never going back; steps are sized and deadlines kept by it, tokens don't depend on it
    """

    def __init__(
        self,
        runner: ModelRunner,
        kv_config: KVCacheConfig,
        scheduler_config: SchedulerConfig,
        *,
        ledger: MemoryLedger,
        vocab_size: int,
        eos_token_ids: Collection[int] = (),
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runner = runner
        self.ledger = ledger
        self.scheduler = Scheduler(scheduler_config, KVCacheManager(kv_config, ledger), clock)
        self.limits = RequestLimits(scheduler_config.max_model_len, kv_config.num_blocks, kv_config.demand, vocab_size)
        self.constraints = Constraints(vocab_size)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._seeds = random.Random(seed)
        self.clock = clock
        self._num_accepted = 0

    def step(self) -> list[TokenOutput]:
        """Runs what is due; needs ``has_work``. A request whose prompt isn't done yet has no output.

        :raises EngineError: the runner failed; the engine can't go on
        """
        outputs = self.scheduler.end_expired()
        if self.has_work:
            began = self.clock()
            step = self.constraints.mask(self.scheduler.schedule())
            sampled = self.constraints.follow(self.runner.execute(step))  # the GIL is released inside
            self.scheduler.step_budget.learn(step, self.clock() - began)
            outputs += self.scheduler.update(step, sampled)
        self.constraints.discard_ended(outputs)
        return outputs

    def add_request(
        self,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        cache_salt: str = "",
        tenant: str = "",
        weight: float = 1.0,
        priority: int = 0,
        arrived_at: float | None = None,
        timeout_seconds: float | None = None,
        is_probe: bool = False,
        matcher: Matcher | None = None,
    ) -> int:
        """Takes a request in. It must have passed ``limits.check``, and how many wait is the caller's to bound.

        :param arrived_at: by ``clock``; None: now
        :param timeout_seconds: since it arrived
        :param matcher: of ``sampling.constraint``, at the beginning of the text
        :return: the request's id, greater than all before
        """
        if arrived_at is None:
            arrived_at = self.clock()
        request = Request(
            request_id=self._num_accepted,
            token_ids=list(prompt_token_ids),
            num_prompt_tokens=len(prompt_token_ids),
            sampling=sampling,
            seed=self._seeds.getrandbits(64) if sampling.seed is None else sampling.seed,
            eos_token_ids=frozenset() if sampling.ignore_eos else self._eos_token_ids,
            cache_salt=cache_salt,
            tenant=tenant,
            weight=weight,
            priority=priority,
            arrived_at=arrived_at,
            deadline=math.inf if timeout_seconds is None else arrived_at + timeout_seconds,
            is_probe=is_probe,
        )
        self._num_accepted += 1
        self.scheduler.add(request)
        if matcher is not None:
            self.constraints.add(request.request_id, matcher)
        return request.request_id

    def abort(self, request_id: int, reason: AbortReason = "client") -> RequestTimes | None:
        """Ends a request now: its blocks are free, no output follows. None when it had ended already."""
        self.constraints.discard(request_id)
        return self.scheduler.abort(request_id, reason)

    def stop(self, request_id: int) -> RequestTimes:
        """Ends a running request whose text is complete."""
        self.constraints.discard(request_id)
        return self.scheduler.stop(request_id)

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.requests)

    def take_started(self) -> list[int]:
        """Ids of the requests that left the queue for the first time since this was last asked."""
        started, self.scheduler.started = self.scheduler.started, []
        return started

    def status(self, *, healthy: bool = True, detail: str = "") -> EngineStatus:
        """All that is counted here. May be asked from any thread: nothing is held up for it, so counts that are read
        while a step is taken in may be of before and after.
        """
        scheduler, counters = self.scheduler, self.scheduler.counters
        running = [request.priority for request in scheduler.running.copy() if not request.is_probe]
        return EngineStatus(
            healthy=healthy,
            detail=detail,
            num_running=len(running),
            num_waiting=len(scheduler.waiting),
            num_steps=counters.num_steps,
            seconds_since_step=0.0,
            num_preemptions=counters.num_preemptions,
            running_by_priority=dict(Counter(running)),
            waiting_by_priority=scheduler.waiting.num_by_priority(),
            num_blocks=len(scheduler.kv_cache.pool.blocks),
            block_size=scheduler.kv_cache.config.demand.block_size,
            num_free_blocks=scheduler.kv_cache.pool.num_free,
            num_promised_blocks=scheduler.kv_cache.num_promised,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_generated_tokens=counters.num_generated_tokens,
            num_prefix_hit_tokens=counters.num_prefix_hit_tokens,
            num_aborts={str(reason): count for reason, count in counters.num_aborts.copy().items()},
        )

    def figures(self) -> EngineFigures:
        """May be asked from any thread, as ``status``."""
        gaps = self.scheduler.counters.token_gaps
        return EngineFigures(self.runner.stage_seconds(), tuple(gaps.counts), gaps.total_seconds)

    def check_integrity(self) -> None:
        """:raises EngineError: blocks, tables and ledger don't agree (a bug)"""
        self.scheduler.kv_cache.check_integrity(self.scheduler.running)

    def close(self) -> None:
        """Ends all requests without output, then frees the runner's memory."""
        try:
            for request_id in list(self.scheduler.requests):
                self.abort(request_id, "shutdown")
        finally:  # also when the books are what failed
            self.runner.close()
