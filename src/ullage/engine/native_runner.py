"""Runs steps on the C++ kernels: one native call a step, then the sampler."""

from __future__ import annotations

from itertools import accumulate, chain

import numpy as np

from ullage.engine.sampler import sample
from ullage.engine.step import SampledToken, ScheduledStep
from ullage.kernels.layout import (
    WeightType,
    check_runnable,
    kv_block_bytes,
    logits_bytes,
    weight_layout,
    workspace_layout,
)
from ullage.kernels.native import NativeDecoder
from ullage.models.model_file import ModelFile
from ullage.plan.ledger import MemoryLedger


class NativeRunner:
    """A ``ModelRunner`` on this machine's cores.

    Takes everything it needs from the ledger: packed weights, bf16 KV pool, workspace, logits.

    :param num_threads: threads of a step; one per core is best
    :param isa: force an instruction set (``avx512``, ``avx2``, ``portable``); None takes the best there is
    :raises ConfigError: the kernels are missing or can't run this model
    """

    def __init__(
        self,
        model: ModelFile,
        ledger: MemoryLedger,
        *,
        num_blocks: int,
        block_size: int,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        weight_type: WeightType,
        num_threads: int,
        isa: str | None = None,
    ) -> None:
        spec = model.spec
        check_runnable(spec, block_size)
        layout = weight_layout(spec, weight_type)
        workspace = workspace_layout(spec, max_num_batched_tokens, num_threads)
        self._decoder: NativeDecoder | None = NativeDecoder(
            model,
            layout,
            workspace,
            weights=ledger.allocate("weights", layout.num_bytes),
            kv_pool=ledger.allocate("kv_pool", num_blocks * kv_block_bytes(spec, block_size)),
            workspace=ledger.allocate("workspace", workspace.num_bytes),
            logits=ledger.allocate("logits", logits_bytes(spec, max_num_seqs)),
            block_size=block_size,
            num_blocks=num_blocks,
            max_num_tokens=max_num_batched_tokens,
            num_threads=num_threads,
            isa=isa,
        )
        self.name = f"native ({self._decoder.isa}, {weight_type} weights, {num_threads} threads)"

    def execute(self, step: ScheduledStep) -> list[SampledToken]:
        assert self._decoder is not None, "executed after close"
        requests = step.requests
        lengths = [len(request.token_ids) for request in requests]
        starts = [0, *accumulate(lengths)]
        sampled = [
            (request, end - 1) for request, end in zip(requests, starts[1:], strict=True) if request.needs_logits
        ]
        positions = [
            np.arange(request.num_computed_tokens, request.num_computed_tokens + length, dtype=np.int32)
            for request, length in zip(requests, lengths, strict=True)
        ]
        tables = [*chain.from_iterable(zip(*(request.block_tables for request in requests), strict=True))]
        table_starts = [0, *accumulate(map(len, tables))][:-1]
        logits = self._decoder.step(
            np.fromiter(chain.from_iterable(request.token_ids for request in requests), np.int32, starts[-1]),
            np.concatenate(positions),
            np.array(starts, np.int32),
            np.fromiter(chain.from_iterable(tables), np.int32),
            np.array(table_starts, np.int32),
            np.array([row for _, row in sampled], np.int32),
        )
        return sample(logits, [request for request, _ in sampled]) if sampled else []

    def close(self) -> None:
        self._decoder = None
