"""The native runner and the numpy one side by side, on the same weights.

The numpy runner gets the matrices that the native one holds, read back from its arena by ``packed_weights``: whatever
differs comes from the kernels, not from the rounding of weights (which the tests of packing cover).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tests.packed_weights import unpacked_tensors
from tests.random_model import RandomModel

from ullage.engine.native_runner import NativeRunner
from ullage.engine.numpy_runner import NumpyRunner
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import ScheduledRequest
from ullage.kernels.layout import KVType, WeightLayout, native_memory, numpy_memory, tensor_types, weight_layout
from ullage.kernels.weight_formats import WeightType
from ullage.models.layer_groups import layer_groups
from ullage.models.spec import ModelSpec, expected_tensors
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
    """For each layer group."""
    block_size: int = 16
    max_tokens: int = 206
    max_seqs: int = 8

    def pool_blocks(self, spec: ModelSpec) -> int:
        return self.num_blocks * len(layer_groups(spec))


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
    num_blocks = sizes.pool_blocks(model.spec)
    planned = native_memory(
        model.spec,
        num_blocks,
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
        num_blocks=num_blocks,
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
    num_blocks = sizes.pool_blocks(model.spec)
    return NumpyRunner(
        model,
        MemoryLedger(numpy_memory(model.spec, num_blocks, sizes.block_size, sizes.max_seqs)),
        num_blocks=num_blocks,
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


def relative_error(ours: Floats, theirs: Floats) -> float:
    """Root mean square of the difference of a row, in units of the row's own spread; the worst row."""
    assert ours.shape == theirs.shape
    assert len(ours)
    difference = np.sqrt(np.mean(np.square(ours - theirs), axis=1))
    return float(np.max(difference / theirs.std(axis=1)))


def request(
    tokens: Sequence[int],
    start: int,
    end: int,
    tables: Sequence[Sequence[int]],
    *,
    request_id: int = 0,
    logits: bool = True,
) -> ScheduledRequest:
    """Tokens ``start .. end`` of a request.

    :param tables: blocks by layer group, see ``tables_of``
    """
    return ScheduledRequest(
        request_id=request_id,
        token_ids=tokens[start:end],
        num_computed_tokens=start,
        block_tables=tables,
        sampling=LOGPROBS,
        seed=0,
        needs_logits=logits,
        history=tokens[:end],
        num_prompt_tokens=len(tokens),
    )
