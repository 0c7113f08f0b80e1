"""An engine core on a FakeRunner, small enough to see through."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from ullage.engine.core import EngineCore
from ullage.engine.fake_runner import FakeRunner
from ullage.engine.kv_cache import KVCacheConfig
from ullage.engine.request import TokenOutput
from ullage.engine.scheduler import SchedulerConfig
from ullage.plan.block_demand import BlockDemand
from ullage.plan.ledger import MemoryLedger

VOCAB_SIZE = 128
SLOT_BYTES = 8
EOS_TOKEN_ID = 127
NO_BOUNDS: Mapping[str, int] = {}
"""Of the queue, by their names in ``SchedulerConfig``."""


def make_core(
    *,
    num_blocks: int = 16,
    block_size: int = 4,
    windows: tuple[int | None, ...] = (None,),
    max_model_len: int = 1000,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 16,
    max_waiting_requests: int = 8,
    target_itl_ms: int = 0,
    max_preemptions: int = 3,
    enable_prefix_caching: bool = True,
    eos_probability: float = 0.0,
    seed: int = 0,
    runner_class: type[FakeRunner] = FakeRunner,
    bounds: Mapping[str, int] = NO_BOUNDS,
    clock: Callable[[], float] = time.monotonic,
) -> EngineCore:
    runner = runner_class(
        num_blocks=num_blocks,
        block_size=block_size,
        vocab_size=VOCAB_SIZE,
        windows=windows,
        eos_token_id=EOS_TOKEN_ID,
        eos_probability=eos_probability,
    )
    demand = BlockDemand(block_size, windows, max_num_batched_tokens)
    return EngineCore(
        runner,
        KVCacheConfig(num_blocks, demand, SLOT_BYTES, enable_prefix_caching),
        SchedulerConfig(
            max_model_len,
            max_num_seqs,
            max_num_batched_tokens,
            max_waiting_requests,
            target_itl_ms,
            max_preemptions,
            **bounds,
        ),
        ledger=MemoryLedger({"kv_pool": num_blocks * block_size * SLOT_BYTES}),
        vocab_size=VOCAB_SIZE,
        eos_token_ids=[EOS_TOKEN_ID],
        seed=seed,
        clock=clock,
    )


def expected_tokens(core: EngineCore, prompt_token_ids: Sequence[int], num_tokens: int) -> list[int]:
    assert isinstance(core.runner, FakeRunner)
    return core.runner.expected_tokens(prompt_token_ids, num_tokens)


def run(core: EngineCore) -> dict[int, list[TokenOutput]]:
    """Steps until nothing is left to do; the outputs by request. Checks the books after each step."""
    outputs: dict[int, list[TokenOutput]] = {}
    while core.has_work:
        for output in core.step():
            outputs.setdefault(output.request_id, []).append(output)
        core.check_integrity()
    return outputs
