"""The engine, in tokens. The page to read first.

Three classes lie around each other: ``EngineCore`` here knows tokens; ``TextEngine`` in ``output.py`` makes text of
them; ``EmbeddedEngine`` in ``embedded.py`` gives both a thread, takes requests in and refuses those that can't be.

``step`` is all of it: the scheduler says what to run, the runner runs it, the scheduler takes the result in. What they
say to each other stands in ``step.py``; who runs when, in ``scheduler.py``; where keys and values lie, in
``kv_cache.py``; how large a step may be, in ``step_budget.py``; which tokens a constraint allows, in
``constraints.py``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence

from ullage.engine.constraints import Constraints
from ullage.engine.grammars import Matcher
from ullage.engine.kv_cache import KVCacheConfig, KVCacheManager
from ullage.engine.request import Request, RequestLimits, TokenOutput
from ullage.engine.runner import ModelRunner
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.scheduler import Scheduler, SchedulerConfig
from ullage.plan.ledger import MemoryLedger


class EngineCore:
    """Scheduler, KV cache and runner. Belongs to one thread; only ``limits`` may be used from others.

    The same requests in the same order give the same tokens, whatever runs beside them.

    :param eos_token_ids: the model's own end-of-sequence ids
    :param seed: from which requests that bring no seed get theirs
    :param clock: seconds, never going back; steps are sized by it, tokens don't depend on it
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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner = runner
        self.ledger = ledger
        self.scheduler = Scheduler(scheduler_config, KVCacheManager(kv_config, ledger))
        self.limits = RequestLimits(scheduler_config.max_model_len, kv_config.num_blocks, kv_config.demand, vocab_size)
        self.constraints = Constraints(vocab_size)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._seeds = random.Random(seed)
        self._clock = clock
        self._num_accepted = 0

    def step(self) -> list[TokenOutput]:
        """Runs what is due; needs ``has_work``. A request whose prompt isn't done yet has no output.

        :raises EngineError: the runner failed; the engine can't go on
        """
        began = self._clock()
        step = self.constraints.mask(self.scheduler.schedule())
        sampled = self.constraints.follow(self.runner.execute(step))  # the GIL is released inside
        self.scheduler.step_budget.learn(step, self._clock() - began)
        outputs = self.scheduler.update(step, sampled)
        for output in outputs:
            if output.finish_reason is not None:
                self.constraints.discard(output.request_id)
        return outputs

    def add_request(
        self,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        cache_salt: str = "",
        matcher: Matcher | None = None,
    ) -> int:
        """Takes a request in. It must have passed ``limits.check``, and how many wait is the caller's to bound.

        :param matcher: of ``sampling.constraint``, at the beginning of the text
        :return: the request's id, greater than all before
        """
        request = Request(
            request_id=self._num_accepted,
            token_ids=list(prompt_token_ids),
            num_prompt_tokens=len(prompt_token_ids),
            sampling=sampling,
            seed=self._seeds.getrandbits(64) if sampling.seed is None else sampling.seed,
            eos_token_ids=frozenset() if sampling.ignore_eos else self._eos_token_ids,
            cache_salt=cache_salt,
        )
        self._num_accepted += 1
        self.scheduler.add(request)
        if matcher is not None:
            self.constraints.add(request.request_id, matcher)
        return request.request_id

    def abort(self, request_id: int) -> bool:
        """Ends a request now: its blocks are free, no output follows. False when it had ended already."""
        self.constraints.discard(request_id)
        return self.scheduler.abort(request_id)

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.requests)

    def check_integrity(self) -> None:
        """:raises EngineError: blocks, tables and ledger don't agree (a bug)"""
        self.scheduler.kv_cache.check_integrity(self.scheduler.running)

    def close(self) -> None:
        """Ends all requests without output, then frees the runner's memory."""
        try:
            for request_id in list(self.scheduler.requests):
                self.abort(request_id)
        finally:  # also when the books are what failed
            self.runner.close()
