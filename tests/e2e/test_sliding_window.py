"""Gemma's layers with a window hold only its blocks, and the tokens don't change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.test_equal_outputs import assert_same_tokens

from ullage import LLM, SamplingParams
from ullage.engine.llm import Completion

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, logprobs=2, ignore_eos=True)
LOG = "".join(f"On day {i} the harbour master counted {i * i % 31} ships and wrote it down. " for i in range(110))
BLOCK_BYTES = 2 * 3 * 1 * 256 * 2 * 32  # K and V, layers of a group, heads, head size, bf16, tokens


@contextmanager
def gemma(model_path: Callable[[str], Path], num_blocks: int, **options: object) -> Iterator[LLM]:
    with LLM(model_path("gemma3-270m"), kv_memory=num_blocks * BLOCK_BYTES, max_model_len=4096, **options) as llm:
        yield llm


@pytest.fixture(scope="module")
def whole(model_path: Callable[[str], Path]) -> Completion:
    """The prompt in one step, which sees every block."""
    with gemma(model_path, 1000, max_num_batched_tokens=4096) as llm:
        completion = llm.generate(LOG, GREEDY)
    assert 1500 < len(completion.prompt_token_ids) < 2400
    return completion


def blocks_needed(completion: Completion, chunk: int) -> int:
    length = -(-(len(completion.prompt_token_ids) + GREEDY.max_tokens) // 32)
    return length + 5 * -(-(511 + chunk + 31) // 32)


def test_a_pool_for_the_windows_alone_is_enough(model_path: Callable[[str], Path], whole: Completion) -> None:
    num_blocks = blocks_needed(whole, chunk=100)
    assert num_blocks * 32 < 3 * len(whole.prompt_token_ids)  # of the six that all its keys and values would take
    with gemma(model_path, num_blocks, max_num_batched_tokens=100) as llm:
        cold, warm = llm.generate(LOG, GREEDY), llm.generate(LOG, GREEDY)
    assert warm.num_cached_tokens > 0
    assert_same_tokens(whole, cold)
    assert_same_tokens(whole, warm)


def test_side_by_side_equals_alone(model_path: Callable[[str], Path], whole: Completion) -> None:
    long, short = whole.prompt_token_ids, whole.prompt_token_ids[:-300]
    num_blocks = 3 * blocks_needed(whole, chunk=128)
    with gemma(model_path, num_blocks, max_num_batched_tokens=128, enable_prefix_caching=False) as llm:
        together = llm.generate([long, short, long, short], GREEDY)
        alone = llm.generate(short, GREEDY)
        assert llm.ledger().kv_reserved_bytes == 0
    for expected, completion in zip([whole, alone] * 2, together, strict=True):
        assert_same_tokens(expected, completion)
