"""The reference's rows are those that the numpy runner has for whole prompts."""

from __future__ import annotations

import numpy as np
import pytest
from tests.model_fixtures import tiny_model
from tests.random_model import tables_of

from ullage.engine.numpy_runner import NumpyRunner
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import ScheduledRequest, ScheduledStep
from ullage.kernels.layout import numpy_memory
from ullage.ops.accuracy.pieces import Pieces
from ullage.ops.accuracy.reference import CHUNK_ROWS, NumpyLogits, store_reference
from ullage.plan.ledger import MemoryLedger


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_each_row_is_the_answer_to_the_prompt_that_ends_there(architecture, tmp_path):
    model, length = tiny_model(architecture), CHUNK_ROWS + 20
    tokens = np.random.default_rng(0).integers(0, model.spec.vocab_size, length).tolist()
    pieces = Pieces((tuple(tokens[:5]), tuple(tokens)), 0)
    stored = store_reference(NumpyLogits(model, pieces), pieces, model.spec.vocab_size, tmp_path)
    tables = tables_of(model.spec, range(10), 10)
    num_blocks = sum(map(len, tables))
    runner = NumpyRunner(
        model,
        MemoryLedger(numpy_memory(model.spec, num_blocks, 16, 1)),
        num_blocks=num_blocks,
        block_size=16,
        max_num_batched_tokens=length,
        max_num_seqs=1,
    )
    for stop in (1, 5, CHUNK_ROWS, CHUNK_ROWS + 1, length):
        request = ScheduledRequest(0, tokens[:stop], 0, tables, SamplingParams(), 0, True, tokens[:stop], stop)
        expected = runner.compute_logits(ScheduledStep((request,)))[0]
        np.testing.assert_allclose(stored[5 + stop - 1], expected, atol=2e-4)
