"""The native runner and the numpy one side by side, on the same weights.

The numpy runner gets the matrices that the native one holds, read back from its arena by ``packed_weights``: whatever
differs comes from the kernels, not from the rounding of weights (which the tests of packing cover).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from tests.packed_weights import unpacked_tensors
from tests.random_model import RandomModel

from ullage.engine import native_runner
from ullage.engine.native_runner import NativeRunner
from ullage.engine.numpy_runner import NumpyRunner
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import ScheduledRequest, ScheduledStep
from ullage.kernels.layout import KVType, WeightLayout, native_memory, numpy_memory, tensor_types, weight_layout
from ullage.kernels.weight_formats import WeightType
from ullage.models.spec import expected_tensors
from ullage.plan.ledger import MemoryLedger

LOGPROBS = SamplingParams(temperature=0.0, logprobs=20, max_tokens=1)

BYTE_ROWS = {"avx512": 16, "amx": 6, "amx-imitated": 6}
"""Instruction sets with dot products: they round activations to bf16, but up to so many rows that meet weights in
groups to two bytes. The others keep activations in float32."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Sizes:
    """What both runners are built for."""

    num_blocks: int = 24
    block_size: int = 16
    max_tokens: int = 206
    max_seqs: int = 8


class KeepingLedger(MemoryLedger):
    """Shows what was allocated."""

    def __init__(self, planned: dict[str, int]) -> None:
        super().__init__(planned)
        self.memory: dict[str, memoryview] = {}

    def allocate(self, account: str, num_bytes: int) -> memoryview:
        self.memory[account] = super().allocate(account, num_bytes)
        return self.memory[account]


@dataclass(frozen=True)
class BuiltRunner:
    runner: NativeRunner
    layout: WeightLayout
    arena: NDArray[np.uint8]
    """The runner's weights; what is written here, it computes with."""


def build_native(
    model: RandomModel,
    sizes: Sizes = Sizes(),
    *,
    isa: str | None = None,
    weight_type: WeightType = "bf16",
    kv_type: KVType = "bf16",
    threads: int = 2,
) -> BuiltRunner:
    stored_types = tensor_types(model)
    planned = native_memory(
        model.spec,
        sizes.num_blocks,
        sizes.block_size,
        sizes.max_seqs,
        weight_type=weight_type,
        stored_types=stored_types,
        kv_type=kv_type,
        max_num_batched_tokens=sizes.max_tokens,
        num_threads=threads,
    )
    ledger = KeepingLedger(planned)
    runner = NativeRunner(
        model,
        ledger,
        num_blocks=sizes.num_blocks,
        block_size=sizes.block_size,
        max_num_batched_tokens=sizes.max_tokens,
        max_num_seqs=sizes.max_seqs,
        weight_type=weight_type,
        kv_type=kv_type,
        num_threads=threads,
        isa=isa,
    )
    ledger.check_complete()
    layout = weight_layout(model.spec, weight_type, stored_types)
    return BuiltRunner(runner, layout, np.frombuffer(ledger.memory["weights"], np.uint8))


def build_numpy(model: RandomModel, sizes: Sizes = Sizes()) -> NumpyRunner:
    return NumpyRunner(
        model,
        MemoryLedger(numpy_memory(model.spec, sizes.num_blocks, sizes.block_size, sizes.max_seqs)),
        num_blocks=sizes.num_blocks,
        block_size=sizes.block_size,
        max_num_batched_tokens=sizes.max_tokens,
        max_num_seqs=sizes.max_seqs,
    )


class HeldModel(RandomModel):
    """A model with the matrices that a native runner holds."""

    def __init__(self, model: RandomModel, built: BuiltRunner) -> None:
        super().__init__(model.spec)
        self._model = model
        self._matrices = unpacked_tensors(built.arena, built.layout, expected_tensors(model.spec))

    def read_tensor(self, name: str) -> Floats:
        return self._matrices[name] if name in self._matrices else self._model.read_tensor(name)


def native_logits(runner: NativeRunner, step: ScheduledStep) -> Floats:
    """``[requests with needs_logits, vocab]``"""
    with patch.object(native_runner, "sample", lambda logits, _: logits.copy()):
        logits = runner.execute(step)
    return np.asarray(logits, np.float32).reshape(-1, runner_vocab(runner))


def runner_vocab(runner: NativeRunner) -> int:
    assert runner._decoder is not None
    return runner._decoder._spec.vocab_size


def relative_error(ours: Floats, theirs: Floats) -> float:
    """Root mean square of the difference of a row, in units of the row's own spread; the worst row."""
    assert ours.shape == theirs.shape
    assert len(ours)
    difference = np.sqrt(np.mean(np.square(ours - theirs), axis=1))
    return float(np.max(difference / theirs.std(axis=1)))


def request(
    tokens: Sequence[int], start: int, end: int, blocks: Sequence[int], *, request_id: int = 0, logits: bool = True
) -> ScheduledRequest:
    """Tokens ``start .. end`` of a request."""
    return ScheduledRequest(
        request_id=request_id,
        token_ids=tokens[start:end],
        num_computed_tokens=start,
        block_ids=blocks,
        sampling=LOGPROBS,
        seed=0,
        needs_logits=logits,
        history=tokens[:end],
        num_prompt_tokens=len(tokens),
    )
