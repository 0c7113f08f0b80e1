"""The real model gives the same greedy tokens however a request is run.

Rounding differs with the shape of a batch, so two runs may part where the best two tokens are nearly equal; anywhere
else they must not. FakeRunner, which has no rounding, is held to exact equality in ``tests/unit/engine``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ullage import LLM, SamplingParams
from ullage.engine.llm import Completion

CLOSE_CALL_NATS = 0.15
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, logprobs=2, ignore_eos=True)
STORY = "The harbour master wrote down the draught of every ship that came in with the tide. "
QUESTIONS = [
    "Explain what a KV cache is in a large language model.",
    "List three rivers of Europe.",
    STORY * 6 + "What did the harbour master do?",
    "Write a haiku about the sea.",
]


@contextmanager
def smollm2(model_path: Callable[[str], Path], **options: object) -> Iterator[LLM]:
    with LLM(model_path("smollm2"), **({"kv_memory": "64MiB", "max_model_len": 2048} | options)) as llm:
        yield llm


def answer(llm: LLM, question: str) -> Completion:
    return llm.chat([{"role": "user", "content": question}], GREEDY)


def assert_same_tokens(one: Completion, other: Completion) -> None:
    assert len(one.token_ids) == len(other.token_ids) == GREEDY.max_tokens
    for index, (a, b) in enumerate(zip(one.token_ids, other.token_ids, strict=True)):
        if a != b:  # from here on they continue different texts
            (_, best), (_, second) = one.logprobs[index].top_logprobs
            assert best - second <= CLOSE_CALL_NATS, f"token {index}: {a} or {b}, {best - second:.3f} nats apart"
            return


@pytest.fixture(scope="module")
def alone(model_path: Callable[[str], Path]) -> list[Completion]:
    """Each question on its own, nothing cached, whole prompts at once."""
    with smollm2(model_path, enable_prefix_caching=False) as llm:
        return [answer(llm, question) for question in QUESTIONS]


def test_the_expected_tokens_are_worth_comparing(alone: list[Completion]) -> None:
    assert len({completion.token_ids for completion in alone}) == len(QUESTIONS)
    assert "cache" in alone[0].text


def test_streamed_equals_whole(model_path: Callable[[str], Path], alone: list[Completion]) -> None:
    with smollm2(model_path, enable_prefix_caching=False) as llm:
        for question, expected in zip(QUESTIONS, alone, strict=True):
            outputs = list(llm.chat_stream([{"role": "user", "content": question}], GREEDY))
            assert "".join(output.text for output in outputs) == expected.text
            assert tuple(token_id for output in outputs for token_id in output.token_ids) == expected.token_ids


def test_a_warm_prefix_cache_equals_a_cold_one(model_path: Callable[[str], Path], alone: list[Completion]) -> None:
    with smollm2(model_path) as llm:
        cold = [answer(llm, question) for question in QUESTIONS]
        warm = [answer(llm, question) for question in QUESTIONS]
    assert all(completion.num_cached_tokens > 0 for completion in warm)
    for first, second, expected in zip(cold, warm, alone, strict=True):
        assert_same_tokens(expected, first)
        assert_same_tokens(expected, second)


def test_in_a_batch_of_16_equals_alone(model_path: Callable[[str], Path], alone: list[Completion]) -> None:
    with smollm2(model_path, enable_prefix_caching=False) as llm:
        together = llm.generate([alone[i % 4].prompt_token_ids for i in range(16)], GREEDY)
    for i, completion in enumerate(together):
        assert_same_tokens(alone[i % 4], completion)


@pytest.mark.parametrize("chunk", [1, 7, 64, 100])
def test_any_prefill_chunk_equals_the_whole(
    chunk: int, model_path: Callable[[str], Path], alone: list[Completion]
) -> None:
    with smollm2(model_path, max_num_seqs=1, max_num_batched_tokens=chunk) as llm:
        for question, expected in zip(QUESTIONS, alone, strict=True):
            assert_same_tokens(expected, answer(llm, question))


def test_forced_preemption_equals_none(model_path: Callable[[str], Path], alone: list[Completion]) -> None:
    # 16 blocks of 16 tokens for four requests of 60 to 150 tokens and 40 more. Outputs were short so far, so all are
    # let in, and some must give way.
    first_tokens = tuple(completion.token_ids[0] for completion in alone)
    short = replace(GREEDY, stop_token_ids=first_tokens)
    with smollm2(model_path, kv_memory=16 * 16 * 23040, block_size=16, enable_prefix_caching=False) as llm:
        for _ in range(4):
            llm.generate([expected.prompt_token_ids for expected in alone], short)
        completions = llm.generate([expected.prompt_token_ids for expected in alone], GREEDY)
        num_preemptions = llm.status().num_preemptions
    assert num_preemptions > 0
    for completion, expected in zip(completions, alone, strict=True):
        assert_same_tokens(expected, completion)


def test_blocks_are_free_or_cached_after_the_last_request(model_path: Callable[[str], Path]) -> None:
    with smollm2(model_path) as llm:
        llm.generate([STORY * (i + 1) for i in range(8)], GREEDY)
        ledger = llm.ledger()
    assert ledger.kv_reserved_bytes == ledger.kv_used_bytes == 0
    assert ledger.kv_cached_bytes > 0
