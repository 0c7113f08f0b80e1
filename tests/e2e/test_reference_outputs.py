"""Every runner on the real demo models against what Hugging Face transformers computed from the same files."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ullage.engine.native_runner import NativeRunner
from ullage.engine.numpy_runner import NumpyRunner
from ullage.engine.runner import ModelRunner
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import SampledToken, ScheduledRequest, ScheduledStep
from ullage.kernels.layout import WeightType, native_memory, numpy_memory
from ullage.models.layer_groups import layer_groups
from ullage.models.model_file import ModelFile
from ullage.models.open_model import open_model
from ullage.plan.ledger import MemoryLedger

BLOCK_SIZE = 16
MAX_NUM_BATCHED_TOKENS = 1024
GREEDY = SamplingParams(temperature=0.0, max_tokens=48, logprobs=10)  # more than five: ranks 5 and 6 may swap
REFERENCES = {"smollm2": "smollm2-135m-instruct-q4_1.json", "gemma3-270m": "gemma-3-270m-q4_k_m.json"}


def build_numpy_runner(model: ModelFile, num_blocks: int, max_num_seqs: int) -> ModelRunner:
    ledger = MemoryLedger(numpy_memory(model.spec, num_blocks, BLOCK_SIZE, max_num_seqs))
    runner = NumpyRunner(
        model,
        ledger,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        max_num_seqs=max_num_seqs,
    )
    ledger.check_complete()
    return runner


def build_native_runner(
    model: ModelFile, num_blocks: int, max_num_seqs: int, weight_type: WeightType = "bf16"
) -> ModelRunner:
    planned = native_memory(
        model.spec,
        num_blocks,
        BLOCK_SIZE,
        max_num_seqs,
        weight_type=weight_type,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        num_threads=2,
    )
    ledger = MemoryLedger(planned)
    runner = NativeRunner(
        model,
        ledger,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        max_num_seqs=max_num_seqs,
        weight_type=weight_type,
        num_threads=2,
    )
    ledger.check_complete()
    return runner


@dataclass(frozen=True)
class RunnerCase:
    """A runner and how close it must come, in nats."""

    build: Callable[[ModelFile, int, int], ModelRunner]
    close_call: float
    """Another token than the reference's is allowed where the reference's best two differ by this much or less."""
    mean_error: float
    """Of the log-probability of the reference's best token, over all tokens of all prompts."""
    max_error: float
    """Of each of the reference's five best log-probabilities."""


RUNNERS = {
    "numpy": RunnerCase(build_numpy_runner, close_call=0.0, mean_error=0.01, max_error=0.01),
    "native bf16": RunnerCase(build_native_runner, close_call=0.15, mean_error=0.02, max_error=0.5),
    "native int8": RunnerCase(
        partial(build_native_runner, weight_type="int8"), close_call=0.15, mean_error=0.04, max_error=2.0
    ),
}


@dataclass
class Sequence:
    """One reference prompt while it is decoded. It always goes on with the reference's own token."""

    request_id: int
    block_tables: list[list[int]]
    entry: dict[str, Any]
    tokens: list[int]
    num_computed_tokens: int = 0

    def schedule(self) -> ScheduledRequest:
        return ScheduledRequest(
            request_id=self.request_id,
            token_ids=self.tokens[self.num_computed_tokens :],
            num_computed_tokens=self.num_computed_tokens,
            block_tables=self.block_tables,
            sampling=GREEDY,
            seed=0,
            needs_logits=True,
            history=self.tokens,
            num_prompt_tokens=len(self.entry["prompt_ids"]),
        )

    def append(self, token_id: int) -> None:
        self.num_computed_tokens = len(self.tokens)
        self.tokens.append(token_id)


def new_sequences(reference: list[dict[str, Any]], num_groups: int) -> list[Sequence]:
    """Block tables in random order, so that nothing may rely on neighbouring blocks."""
    counts = [-(-(len(entry["prompt_ids"]) + len(entry["greedy"])) // BLOCK_SIZE) for entry in reference]
    num_blocks = sum(counts) * num_groups
    free = random.Random(0).sample(range(num_blocks), num_blocks)
    return [
        Sequence(
            number, [[free.pop() for _ in range(count)] for _ in range(num_groups)], entry, list(entry["prompt_ids"])
        )
        for number, (count, entry) in enumerate(zip(counts, reference, strict=True))
    ]


@contextmanager
def running(
    case: RunnerCase, path: Path, reference: list[dict[str, Any]]
) -> Iterator[tuple[ModelRunner, list[Sequence]]]:
    model = open_model(path)
    sequences = new_sequences(reference, len(layer_groups(model.spec)))
    num_blocks = sum(len(table) for sequence in sequences for table in sequence.block_tables)
    runner = case.build(model, num_blocks, len(sequences))
    try:
        yield runner, sequences
    finally:
        runner.close()
        model.close()


def errors(sampled: SampledToken, expected: dict[str, Any]) -> list[float]:
    """Of the reference's five best log-probabilities, best first; infinite for one that is not among our ten best."""
    ours = dict(sampled.top_logprobs)
    return [abs(ours.get(token_id, np.inf) - logprob) for token_id, logprob in expected["top"]]


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("runner_name", RUNNERS)
def test_greedy_tokens_and_logprobs_are_those_of_transformers(
    runner_name: str, name: str, model_path: Callable[[str], Path]
) -> None:
    case = RUNNERS[runner_name]
    reference = json.loads((Path(__file__).parent / "reference" / REFERENCES[name]).read_text(encoding="utf-8"))
    five_best: list[list[float]] = []
    with running(case, model_path(name), reference) as (runner, sequences):
        for index in range(len(reference[0]["greedy"])):
            # all prompts in one step: prefill first, then one token each
            step = ScheduledStep(tuple(sequence.schedule() for sequence in sequences))
            for sequence, sampled in zip(sequences, runner.execute(step), strict=True):
                expected = sequence.entry["greedy"][index]
                margin = expected["top"][0][1] - expected["top"][1][1]
                where = f"prompt {sequence.request_id}, token {index}, best two {margin:.3f} nats apart"
                assert sampled.token_id == expected["token"] or margin <= case.close_call, where
                five_best.append(errors(sampled, expected))
                sequence.append(expected["token"])
    assert len(five_best) == 48 * len(reference)
    assert np.max(five_best) <= case.max_error
    assert np.mean([best for best, *_ in five_best]) <= case.mean_error
