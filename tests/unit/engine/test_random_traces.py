"""A thousand random lives of an engine: whatever happens, every request gets exactly its tokens, and the books balance.

The runner's next token is a hash of all that it reads back through the block table: a block that is wrong in any way
shows in the tokens. Half of the models have layers with sliding windows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from tests.fake_engine import EOS_TOKEN_ID, make_core

from ullage.base.errors import ContextLengthError, DeadlineError, KVCapacityError
from ullage.engine.core import EngineCore
from ullage.engine.fake_runner import FakeRunner
from ullage.engine.output_lengths import OutputLengths
from ullage.engine.request import Request, TokenOutput
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.scheduler import MAX_TIMES_PASSED
from ullage.engine.step import RELEASED_BLOCK, SampledToken, ScheduledStep
from ullage.engine.step_budget import StepBudget
from ullage.plan.block_demand import BlockDemand

MAX_TOKENS = 25


@dataclass
class Asked:
    prompt_token_ids: list[int]
    sampling: SamplingParams
    tokens: list[int] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)


class InterruptedRunner(FakeRunner):
    """Lets the trace do something while a step runs."""

    interrupt = staticmethod(lambda: None)
    max_num_batched_tokens = 0
    num_given_back = 0

    def execute(self, step: ScheduledStep) -> list[SampledToken]:
        assert step.num_tokens <= self.max_num_batched_tokens
        for request in step.requests:
            self.num_given_back += any(RELEASED_BLOCK in table for table in request.block_tables)
        self.interrupt()
        sampled = super().execute(step)
        self.interrupt()
        return sampled


class RandomBudget(StepBudget):
    """Anything that keeps everybody going."""

    def __init__(self, numbers: random.Random, max_num_tokens: int) -> None:
        super().__init__(0, max_num_tokens)
        self.random = numbers

    def num_tokens(self, running: Sequence[Request], next_waiting: Request | None) -> int:
        return self.random.randint(max(1, len(running)), self.max_num_tokens)


class WrongLengths(OutputLengths):
    """Expects far too little: those that started have to give way all the time."""

    def __init__(self, numbers: random.Random) -> None:
        super().__init__()
        self.excess = numbers.choice([1, 1, 5])

    def expect(self, max_tokens: int, num_output_tokens: int) -> int:
        return min(max_tokens, num_output_tokens + self.excess)


class Trace:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self.asked: dict[int, Asked] = {}
        self.num_to_come = self.random.randint(1, 25)
        self.now = 0.0
        longest = self.random.choice([0, 4, 30])
        self.core = self._core(longest + 6 + MAX_TOKENS)
        self.core.runner.interrupt = self._maybe_abort
        max_num_tokens = self.core.runner.max_num_batched_tokens = self.core.scheduler.config.max_num_batched_tokens
        if self.random.random() < 0.5:
            self.core.scheduler.step_budget = RandomBudget(self.random, max_num_tokens)
        if self.random.random() < 0.5:
            self.core.scheduler.output_lengths = WrongLengths(self.random)
        self.abort_probability = self.random.choice([0.0, 0.02, 0.1])
        self.arrival_probability = self.random.choice([0.2, 0.7, 0.95])
        self.prefixes = [self._token_ids(self.random.randint(0, longest)) for _ in range(3)]

    def _core(self, longest: int) -> EngineCore:
        """:param longest: tokens of the longest request that may come"""
        max_num_seqs = self.random.randint(1, 8)
        block_size = self.random.choice([1, 2, 3, 4, 8, 16])
        max_num_batched_tokens = max_num_seqs + self.random.choice([0, 1, 5, 20, 100])
        windows = self._windows()
        # Of the blocks that the longest request needs: with windows, fewer than its tokens.
        needed = BlockDemand(block_size, windows, max_num_batched_tokens).num_blocks(longest)
        return make_core(
            num_blocks=max(1, int(needed * self.random.choice([0.5, 1, 1.2, 1.2, 1.5, 2, 3, 10]))),
            block_size=block_size,
            windows=windows,
            max_model_len=self.random.choice([20, 80, 80]),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_preemptions=self.random.choice([0, 1, 3, 3]),
            clock=self._clock,
            enable_prefix_caching=self.random.random() < 0.85,
            eos_probability=self.random.choice([0.0, 0.0, 0.1]),
            seed=self.random.getrandbits(20),
            runner_class=InterruptedRunner,
        )

    def _clock(self) -> float:
        """Another tick each time that somebody looks."""
        self.now += 1.0
        return self.now

    def _windows(self) -> tuple[int | None, ...]:
        """Half of the models have windows, some nothing else."""
        if self.random.random() < 0.5:
            return (None,)
        kinds = [*self.random.choice([[None], [None], [None, 9], []]), self.random.choice([1, 2, 3, 4, 5, 8, 16, 40])]
        return tuple(window for window in kinds for _ in range(self.random.randint(1, 2)))

    def _token_ids(self, num_tokens: int) -> list[int]:
        return [self.random.randrange(3) for _ in range(num_tokens)]  # few kinds, so that prompts resemble each other

    def _ask(self) -> None:
        prompt = self.random.choice(self.prefixes) + self._token_ids(self.random.randint(0, 6))
        max_tokens = self.random.randint(1, MAX_TOKENS)
        sampling = SamplingParams(
            max_tokens=max_tokens,
            min_tokens=self.random.choice([0, 0, self.random.randint(0, max_tokens)]),
            ignore_eos=self.random.random() < 0.2,
            stop_token_ids=self.random.choice([(), (), (), (7, 8, 9, 10, 11)]),
        )
        salt = self.random.choice(["", "", "salted"])
        try:
            self.core.limits.check(prompt or [5], sampling)
        except (ContextLengthError, KVCapacityError) as error:
            self.happened[type(error).__name__] += 1
        else:
            request_id = self.core.add_request(
                prompt or [5],
                sampling,
                cache_salt=salt,
                tenant=self.random.choice("abc"),
                weight=1.0,
                priority=self.random.choice([0, 0, 1]),
                timeout_seconds=self.random.choice([None, None, None, None, self.random.uniform(0, 300)]),
            )
            self.asked[request_id] = Asked(prompt or [5], sampling)

    def _maybe_abort(self) -> None:
        if self.random.random() < self.abort_probability and self.asked:
            request_id = self.random.choice(list(self.asked))
            ended_before = request_id not in self.core.scheduler.requests
            # One that is late ends when a step begins; its output comes when the step ends.
            late = ended_before and self.core.scheduler.counters.num_aborts.get("deadline", 0) > 0
            assert bool(self.asked[request_id].endings) == ended_before or late
            assert (self.core.abort(request_id) is None) is ended_before
            if not ended_before:
                self.asked[request_id].endings.append("abort")

    def _take(self, output: TokenOutput) -> None:
        asked = self.asked[output.request_id]
        assert not asked.endings, "an output after the last one"
        assert (output.times is None) == (output.finish_reason is None)
        if isinstance(output.error, DeadlineError):
            asked.endings.append("deadline")
            return
        asked.tokens.append(output.token_id)
        assert output.num_output_tokens == len(asked.tokens)
        assert output.num_prompt_tokens == len(asked.prompt_token_ids) > output.num_cached_tokens
        if output.finish_reason is not None:
            asked.endings.append(output.finish_reason)

    def run(self) -> None:
        while self.num_to_come or self.core.has_work:
            while self.num_to_come and (not self.core.has_work or self.random.random() < self.arrival_probability):
                self.num_to_come -= 1
                self._ask()
            self._maybe_abort()
            if self.core.has_work:
                for output in self.core.step():
                    self._take(output)
                self.check_step()
        self.check_end()

    def check_step(self) -> None:
        scheduler = self.core.scheduler
        self.core.check_integrity()
        assert sorted(request.seniority for request in scheduler.running) == [r.seniority for r in scheduler.running]
        assert {*scheduler.requests.values()} == {*scheduler.running, *scheduler.waiting}
        assert len(scheduler.running) <= scheduler.config.max_num_seqs
        for request in scheduler.requests.values():
            assert request.num_preemptions <= scheduler.config.max_preemptions
            assert request.is_protected == (request.num_preemptions == scheduler.config.max_preemptions)
            assert request.num_times_passed <= MAX_TIMES_PASSED
        # What runs gets on by a token in each step. Everyone may be preempted so often and begin again each time.
        num_tokens = sum(len(asked.prompt_token_ids) + asked.sampling.max_tokens for asked in self.asked.values())
        assert scheduler.counters.num_steps <= num_tokens * (1 + scheduler.config.max_preemptions), "somebody starves"

    def check_end(self) -> None:
        for asked in self.asked.values():
            assert len(asked.endings) == 1
            expected, ending = self._expected(asked)
            if asked.endings[0] in ("abort", "deadline"):
                assert asked.tokens == expected[: len(asked.tokens)]
            else:
                assert (asked.tokens, asked.endings[0]) == (expected, ending)
            self.happened[asked.endings[0]] += 1
        pool, booked = self.core.scheduler.kv_cache.pool, self.core.ledger.snapshot()
        assert pool.num_free == len(pool.blocks)
        assert booked.kv_reserved_bytes == booked.kv_used_bytes == 0
        self.happened["preemption"] += self.core.scheduler.counters.num_preemptions
        self.happened["given back"] += self.core.runner.num_given_back
        self.happened["prefix hit"] += self.core.scheduler.counters.num_prefix_hit_tokens

    def _expected(self, asked: Asked) -> tuple[list[int], str]:
        sampling = asked.sampling
        ending_token_ids = {*sampling.stop_token_ids} | (set() if sampling.ignore_eos else {EOS_TOKEN_ID})
        tokens = self.core.runner.expected_tokens(
            asked.prompt_token_ids,
            sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            ending_token_ids=ending_token_ids,
        )
        for i, token_id in enumerate(tokens):
            if token_id in ending_token_ids:
                return tokens[: i + 1], "stop"
        return tokens, "length"


def test_a_thousand_random_traces():
    happened: Counter[str] = Counter()
    for seed in range(1000):
        trace = Trace(seed)
        try:
            trace.run()
        except AssertionError as error:
            pytest.fail(f"trace {seed}: {error!r}")
        happened += trace.happened
    for what in ("length", "stop", "abort", "deadline", "preemption", "prefix hit", "given back"):
        assert happened[what] > 300, happened
    for refused in ("ContextLengthError", "KVCapacityError"):
        assert happened[refused] > 100, happened
