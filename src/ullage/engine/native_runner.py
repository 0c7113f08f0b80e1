"""Runs steps on the C++ kernels: one native call a step, sampling included."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ullage.engine.native_batch import SamplingBatches, decoder_arrays, sampled_tokens
from ullage.engine.step import SampledToken, ScheduledStep
from ullage.kernels.layout import (
    KVType,
    check_runnable,
    kv_block_bytes,
    logits_bytes,
    tensor_types,
    weight_layout,
    workspace_layout,
)
from ullage.kernels.native import NativeDecoder
from ullage.kernels.weight_formats import WeightType
from ullage.models.model_file import ModelFile
from ullage.plan.ledger import MemoryLedger


class NativeRunner:
    """A ``ModelRunner`` on this machine's cores.

    Takes everything it needs from the ledger: packed weights, KV pool, workspace, logits.

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
        kv_type: KVType,
        num_threads: int,
        isa: str | None = None,
    ) -> None:
        spec = model.spec
        self._sampling = SamplingBatches(spec.vocab_size)
        check_runnable(spec, block_size)
        layout = weight_layout(spec, weight_type, tensor_types(model))
        workspace = workspace_layout(spec, max_num_batched_tokens, num_threads, block_size, kv_type)
        self._decoder: NativeDecoder | None = NativeDecoder(
            model,
            layout,
            workspace,
            weights=ledger.allocate("weights", layout.num_bytes),
            kv_pool=ledger.allocate("kv_pool", num_blocks * kv_block_bytes(spec, block_size, kv_type)),
            workspace=ledger.allocate("workspace", workspace.num_bytes),
            logits=ledger.allocate("logits", logits_bytes(spec, max_num_seqs)),
            block_size=block_size,
            num_blocks=num_blocks,
            max_num_tokens=max_num_batched_tokens,
            num_threads=num_threads,
            kv_type=kv_type,
            isa=isa,
        )
        forms = "+".join(layout.bytes_by_format())
        self.name = f"native ({self._decoder.isa}, {forms} weights, {kv_type} KV, {num_threads} threads)"

    def execute(self, step: ScheduledStep) -> list[SampledToken]:
        assert self._decoder is not None, "executed after close"
        sampled = [request for request in step.requests if request.needs_logits]
        sampling = self._sampling.of(sampled)
        return sampled_tokens(sampled, self._decoder.step(*decoder_arrays(step.requests), sampling))

    def compute_logits(self, step: ScheduledStep) -> NDArray[np.float32]:
        """Runs a step without sampling.

        :returns: [requests with needs_logits, vocab], valid until the next step
        """
        assert self._decoder is not None, "executed after close"
        arrays = decoder_arrays(step.requests)
        self._decoder.step(*arrays)
        return self._decoder.logits(len(arrays.logit_rows))

    def stage_seconds(self) -> dict[str, float]:
        """Seconds spent in each kind of operator since the beginning."""
        assert self._decoder is not None, "asked after close"
        return self._decoder.stage_seconds()

    def close(self) -> None:
        self._decoder = None
