"""Logits of every row out of the native kernels, for any weight and KV type that the settings offer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from ullage.engine.build import EngineOptions, make_plan_request, native_arguments, plan_engine
from ullage.engine.native_runner import NativeRunner
from ullage.kernels.reference import Floats
from ullage.models.layer_groups import layer_groups
from ullage.models.model_file import ModelFile
from ullage.ops.accuracy.feeding import Feeding, Step
from ullage.ops.accuracy.formats import Formats
from ullage.ops.accuracy.pieces import Pieces
from ullage.plan.ledger import MemoryLedger


def blocks_of(pieces: Pieces, block_size: int) -> int:
    """KV blocks that the longest piece needs in each layer group."""
    return -(-pieces.longest // block_size)


class NativeLogits(NativeRunner):
    """Implements ``LogitSource``: the engine's own runner, asked for logits instead of tokens."""

    def __init__(
        self,
        model: ModelFile,
        ledger: MemoryLedger,
        pieces: Pieces,
        formats: Formats,
        *,
        block_size: int,
        **others: Any,
    ) -> None:
        super().__init__(model, ledger, block_size=block_size, **others)
        assert self._decoder is not None
        self.engine = f"ullage {self._decoder.isa}"
        self.formats = formats
        self._pieces = pieces
        self._blocks_per_table = blocks_of(pieces, block_size)
        self._num_groups = len(layer_groups(model.spec))

    def run(self, feeding: Feeding) -> Iterator[Floats]:
        for step in feeding.steps:
            logits = self._step(step)
            if len(logits):
                yield logits

    def _step(self, step: Step) -> Floats:
        """The only place that knows how the decoder is called."""
        assert self._decoder is not None
        token_ids = [id_ for part in step for id_ in self._pieces.token_ids[part.piece][part.start : part.stop]]
        measured = np.repeat([part.measured for part in step], [part.num_rows for part in step])
        length, groups = self._blocks_per_table, self._num_groups
        tables = [part.sequence * groups + group for group in range(groups) for part in step]
        logit_rows = np.flatnonzero(measured).astype(np.int32)
        self._decoder.step(
            np.array(token_ids, np.int32),
            np.array([position for part in step for position in range(part.start, part.stop)], np.int32),
            np.array([0, *accumulate(part.num_rows for part in step)], np.int32),
            np.array([table * length + i for table in tables for i in range(length)], np.int32),
            np.arange(len(tables), dtype=np.int32) * np.int32(length),
            logit_rows,
        )
        return self._decoder.logits(len(logit_rows))


def native_logits(
    model: ModelFile, pieces: Pieces, feedings: list[Feeding], formats: Formats, *, threads: int | None
) -> NativeLogits:
    """A runner planned for these feedings, to the byte.

    :raises ConfigError: the kernels are missing, or can't run this model in these formats
    :raises PlanError: the machine has too little memory
    """
    values: dict[str, Any] = dict(formats)  # names and choices are those of the settings
    options = EngineOptions(
        max_model_len=pieces.longest,
        max_num_seqs=max(max(feeding.most_measured_rows, feeding.num_sequences) for feeding in feedings),
        max_num_batched_tokens=max(feeding.most_rows for feeding in feedings),
        runner="native",
        threads=threads,
        **values,
    )
    # The logits have a row for each sequence of a step: there are as many "sequences" as a chunk has rows, but the
    # pool needs to hold only those that run side by side.
    smallest = make_plan_request(replace(options, max_num_seqs=1, kv_memory=None), "native")
    block_bytes = plan_engine(model, smallest).block_bytes
    num_tables = max(feeding.num_sequences for feeding in feedings) * len(layer_groups(model.spec))
    kv_memory = num_tables * blocks_of(pieces, options.block_size) * block_bytes
    request = make_plan_request(replace(options, kv_memory=kv_memory), "native")
    plan = plan_engine(model, request)
    ledger = MemoryLedger(plan.planned_bytes())
    runner = NativeLogits(
        model,
        ledger,
        pieces,
        formats,
        **native_arguments(plan, request),
    )
    ledger.check_complete()
    return runner
