"""The native runner's attention against numpy, on models that are little else.

The embedding is made faint and the feed-forward adds nothing, so the logits are those of one layer's attention. Scores
have a small spread, so every token has its share: one of n makes about 1 / sqrt(n) of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.native_runners import HeldModel, Sizes, build_native, build_numpy, relative_error, request
from tests.random_model import RandomModel, small_spec

from ullage.engine.step import ScheduledStep
from ullage.kernels.layout import KV_TYPES, KVType
from ullage.kernels.native import native_isas
from ullage.models.spec import LayerSpec, ModelSpec, RopeSpec

MAX_TOKENS = 128
MOST_ERROR = {"bf16": 0.01, "int8": 0.02}
"""bf16: half of what random models may differ by, with two products instead of four, once instead of twice. A byte per
key and value adds the rounding to a 254th of twice the peak, 0.01 in the mean square of both, and half as much again
where the peak is high."""


class AttentionModel(RandomModel):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, gain=0.7)

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        share = {"embed": 2.0**-10, "down": 0.0}.get(name.rpartition(".")[2], 1.0)
        return super().read_tensor(name) * np.float32(share)


@dataclass(frozen=True)
class Case:
    head_size: int
    num_kv_heads: int
    group: int
    window: int | None
    block_size: int
    threads: int
    context: int
    rows: int
    neighbours: tuple[tuple[int, int], ...] = ()
    """Context and rows of further sequences in the same step."""

    @property
    def model(self) -> AttentionModel:
        spec = replace(
            small_spec("llama", vocab_size=61),
            hidden_size=48,
            intermediate_size=16,
            head_size=self.head_size,
            num_heads=self.num_kv_heads * self.group,
            num_kv_heads=self.num_kv_heads,
            layers=(LayerSpec(RopeSpec(theta=10_000.0), self.window),),
            norm_eps=1e-12,  # far below the faint embedding
        )
        return AttentionModel(spec)


cases = st.builds(
    Case,
    head_size=st.sampled_from([16, 32, 48, 64, 80, 128, 256]),
    num_kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 5, 16, 17]),
    window=st.none() | st.integers(1, 70) | st.sampled_from([255, 256, 257, 300]),
    block_size=st.sampled_from([16, 32, 48, 64, 256]),
    threads=st.sampled_from([1, 2, 2, 3]),
    context=st.sampled_from([0, 1, 14, 15, 16, 31, 47, 100, 254, 255, 256, 257, 300, 511, 513, 800]),
    rows=st.sampled_from([1, 1, 2, 3, 4, 5, 12, 13, 17, 33]),
    neighbours=st.lists(st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 19])), max_size=3).map(tuple),
)


def error_of(case: Case, isa: str, kv_type: KVType, *, numpy_window: int | None) -> float:
    """Of the last row of each sequence."""
    sequences = [(case.context, case.rows), *case.neighbours]
    counts = [-(-(before + rows) // case.block_size) for before, rows in sequences]
    sizes = Sizes(sum(counts), case.block_size, MAX_TOKENS, 4)
    model = case.model
    built = build_native(model, sizes, isa=isa, kv_type=kv_type, threads=case.threads)
    held = HeldModel(model, built)
    held.spec = replace(model.spec, layers=(replace(model.spec.layers[0], window=numpy_window),))
    runners = built.runner, build_numpy(held, sizes)

    rng = np.random.default_rng(case.context)
    free = rng.permutation(sizes.num_blocks).tolist()
    last = []
    for number, ((before, rows), count) in enumerate(zip(sequences, counts, strict=True)):
        tokens = rng.integers(0, 61, before + rows).tolist()
        tables = [[free.pop() for _ in range(count)]]  # one layer, one group
        for start in range(0, before, MAX_TOKENS):
            part = request(tokens, start, min(start + MAX_TOKENS, before), tables, request_id=number, logits=False)
            runners[0].execute(ScheduledStep((part,)))
            runners[1].execute(ScheduledStep((part,)))
        last.append(request(tokens, before, before + rows, tables, request_id=number))
    step = ScheduledStep(tuple(last))
    return relative_error(runners[0].compute_logits(step), runners[1].compute_logits(step))


@pytest.mark.parametrize("isa", native_isas())
@pytest.mark.parametrize("kv_type", KV_TYPES)
@settings(deadline=None, derandomize=True, max_examples=40)
@given(case=cases)
def test_attention_agrees_with_numpy(isa: str, kv_type: KVType, case: Case) -> None:
    assert error_of(case, isa, kv_type, numpy_window=case.window) < MOST_ERROR[kv_type]


LONG_CASES = [
    Case(16, 1, 2, None, 16, 2, context=767, rows=1),  # three spans, each full
    Case(16, 1, 2, None, 256, 2, context=4400, rows=1),  # more spans than there is room for parts
    Case(16, 1, 2, None, 48, 3, context=4100, rows=3),  # spans of 240 tokens, rows that end in different blocks
    Case(32, 2, 1, 257, 16, 2, context=4100, rows=4),  # most parts of the context are empty
    Case(32, 2, 1, 3, 256, 2, context=511, rows=3),  # the window crosses blocks: the last row sees nothing of the first
]


@pytest.mark.parametrize("isa", native_isas())
@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("case", LONG_CASES, ids=lambda case: f"{case.rows}x{case.context}/{case.block_size}")
def test_a_long_context_is_shared_out_among_threads(isa: str, kv_type: KVType, case: Case) -> None:
    assert error_of(case, isa, kv_type, numpy_window=case.window) < MOST_ERROR[kv_type]


@pytest.mark.parametrize("isa", native_isas())
@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("window", [1, 16, 47])
def test_one_token_more_does_not_pass(isa: str, kv_type: KVType, window: int) -> None:
    case = Case(32, 2, 2, window, 16, 2, context=300, rows=2)
    assert error_of(case, isa, kv_type, numpy_window=window + 1) > 1.5 * MOST_ERROR[kv_type]
