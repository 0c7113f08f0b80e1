"""The paged, batched forward pass against a dense one written another way, and against itself cut into pieces."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.random_model import RandomModel, small_spec, tables_of

from ullage.base.errors import EngineError
from ullage.engine.numpy_runner import NumpyRunner
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import RELEASED_BLOCK, ScheduledRequest, ScheduledStep
from ullage.kernels.layout import numpy_memory
from ullage.models.layer_groups import layer_groups
from ullage.models.spec import RUNNABLE_ARCHITECTURES, ModelSpec, RopeSpec, expected_tensors
from ullage.plan.ledger import MemoryLedger

NUM_BLOCKS = 40  # for each layer group
TOLERANCE = 2e-4

Doubles = NDArray[np.float64]


def build(spec: ModelSpec, *, block_size: int = 4, num_blocks: int = NUM_BLOCKS, max_num_seqs: int = 4) -> NumpyRunner:
    num_blocks *= len(layer_groups(spec))
    ledger = MemoryLedger(numpy_memory(spec, num_blocks, block_size, max_num_seqs))
    runner = NumpyRunner(
        RandomModel(spec),
        ledger,
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_batched_tokens=64,
        max_num_seqs=max_num_seqs,
    )
    ledger.check_complete()
    return runner


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 61, length).tolist()


def part(
    tokens: Sequence[int],
    start: int,
    stop: int,
    block_tables: Sequence[Sequence[int]],
    *,
    needs_logits: bool = True,
    request_id: int = 0,
) -> ScheduledRequest:
    """Tokens ``start .. stop`` of a request."""
    return ScheduledRequest(
        request_id=request_id,
        token_ids=tokens[start:stop],
        num_computed_tokens=start,
        block_tables=block_tables,
        sampling=SamplingParams(temperature=0.0),
        seed=0,
        needs_logits=needs_logits,
        history=tokens[:stop],
        num_prompt_tokens=len(tokens),
    )


def tables(spec: ModelSpec, block_ids: Sequence[int]) -> list[list[int]]:
    return tables_of(spec, block_ids, NUM_BLOCKS)


def logits_of(runner: NumpyRunner, *requests: ScheduledRequest) -> np.ndarray:
    return runner.compute_logits(ScheduledStep(requests)).copy()


def norm(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    return weight * x * (np.einsum("...i,...i->...", x, x)[..., None] / x.shape[-1] + eps) ** -0.5


def rotate(head: Doubles, rope: RopeSpec, position: int) -> Doubles:
    """One head at one position, as complex numbers."""
    half = len(head) // 2
    factors = np.array(rope.freq_factors or [1.0] * half)
    angles = position / (rope.theta ** (np.arange(half) / half) * factors)
    turned = (head[:half] + 1j * head[half:]) * np.exp(1j * angles) * rope.attention_factor
    return np.concatenate((turned.real, turned.imag))


def dense_logits(spec: ModelSpec, tokens: Sequence[int]) -> Doubles:
    """Logits after the last token: the whole prompt at once in float64, no cache, no blocks, head by head."""
    model = RandomModel(spec)
    w = {name: model.read_tensor(name).astype(np.float64) for name in model.tensor_names()}
    hidden = np.stack([w["embed"][token] * spec.embedding_scale for token in tokens])
    count, eps, group = len(tokens), spec.norm_eps, spec.num_heads // spec.num_kv_heads
    for index, layer in enumerate(spec.layers):
        at = f"layers.{index}."
        x = norm(hidden, w[at + "attn_norm"], eps)
        q, k, v = (
            (np.einsum("ti,oi->to", x, w[at + n]) + w.get(f"{at}{n}_bias", 0.0)).reshape(count, -1, spec.head_size)
            for n in "qkv"
        )
        if spec.qk_norm:
            q, k = norm(q, w[at + "q_norm"], eps), norm(k, w[at + "k_norm"], eps)
        mixed = np.zeros_like(q)
        for h in range(spec.num_heads):
            for t in range(count):
                first = 0 if layer.window is None else max(0, t - layer.window + 1)
                query = rotate(q[t, h], layer.rope, t)
                scores = [query @ rotate(k[s, h // group], layer.rope, s) for s in range(first, t + 1)]
                weights = np.exp(np.array(scores) * spec.score_scale)
                mixed[t, h] = weights / weights.sum() @ v[first : t + 1, h // group]
        out = np.einsum("ti,oi->to", mixed.reshape(count, -1), w[at + "o"])
        hidden = hidden + (norm(out, w[at + "post_attn_norm"], eps) if spec.post_norms else out)
        x = norm(hidden, w[at + "ffn_norm"], eps)
        gate, up = np.einsum("ti,oi->to", x, w[at + "gate"]), np.einsum("ti,oi->to", x, w[at + "up"])
        if spec.activation == "silu":
            gate = gate / (1 + np.exp(-gate))
        else:
            gate = gate / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        out = np.einsum("ti,oi->to", gate * up, w[at + "down"])
        hidden = hidden + (norm(out, w[at + "post_ffn_norm"], eps) if spec.post_norms else out)
    matrix = w["embed"] if spec.tied_embeddings else w["lm_head"]
    return np.einsum("i,oi->o", norm(hidden[-1], w["final_norm"], eps), matrix)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("architecture", RUNNABLE_ARCHITECTURES)
def test_logits_match_a_dense_forward_pass(architecture: str, block_size: int) -> None:
    spec, tokens = small_spec(architecture), prompt(17)
    logits = logits_of(build(spec, block_size=block_size), part(tokens, 0, 17, tables(spec, range(NUM_BLOCKS)[::-1])))
    expected = dense_logits(spec, tokens)
    assert np.ptp(expected) > 1  # else everything would be close to everything
    np.testing.assert_allclose(logits, [expected], atol=TOLERANCE)


@pytest.mark.parametrize("cuts", [[16], [1, 2, 3], [5, 10], list(range(1, 17))], ids=str)
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_prompt_cut_into_chunks_gives_the_same_logits(architecture: str, cuts: list[int]) -> None:
    spec, tokens = small_spec(architecture), prompt(17)
    blocks = tables(spec, [9, 3, 30, 0, 12])
    runner = build(spec)
    for start, stop in zip([0, *cuts], [*cuts, 17], strict=True):
        logits = logits_of(runner, part(tokens, start, stop, blocks, needs_logits=stop == 17))
        assert len(logits) == (stop == 17)
    np.testing.assert_allclose(logits, [dense_logits(spec, tokens)], atol=TOLERANCE)


def test_blocks_that_no_token_sees_need_not_be_there() -> None:
    spec, tokens = small_spec("gemma3"), prompt(17)  # a window of 5, blocks of 4
    runner, blocks = build(spec), tables(spec, [9, 3, 30, 0, 12])
    logits_of(runner, part(tokens, 0, 12, blocks, needs_logits=False))
    full = [group.window is None for group in layer_groups(spec)]
    seen = [table if is_full else [RELEASED_BLOCK] * 2 + table[2:] for table, is_full in zip(blocks, full, strict=True)]
    np.testing.assert_allclose(
        logits_of(runner, part(tokens, 12, 17, seen)), [dense_logits(spec, tokens)], atol=TOLERANCE
    )
    with pytest.raises(AssertionError, match="given back is still needed"):
        logits_of(runner, part(tokens, 11, 17, seen))


def test_a_request_in_a_batch_gets_the_logits_it_gets_alone() -> None:
    spec = small_spec("gemma3")
    runner = build(spec)
    prompts = [prompt(n, seed=n) for n in (3, 21, 1, 12)]
    blocks = [tables(spec, block_ids) for block_ids in ([20], [1, 0, 3, 2, 5, 4], [33], [10, 12, 11])]
    logits_of(runner, part(prompts[1], 0, 20, blocks[1], needs_logits=False))
    # a prefill, a decode, a prompt of one token, and a chunk that isn't the last: one step
    together = logits_of(
        runner,
        part(prompts[0], 0, 3, blocks[0]),
        part(prompts[1], 20, 21, blocks[1]),
        part(prompts[2], 0, 1, blocks[2]),
        part(prompts[3], 0, 7, blocks[3], needs_logits=False),
    )
    after = logits_of(runner, part(prompts[3], 7, 12, blocks[3]))
    for row, tokens in zip([*together, *after], prompts, strict=True):
        np.testing.assert_allclose(row, dense_logits(spec, tokens), atol=TOLERANCE)


def test_requests_may_share_the_blocks_of_a_common_prefix() -> None:
    spec = small_spec("qwen3")
    runner = build(spec)
    shared, tails = prompt(8), [prompt(3, seed=1), prompt(2, seed=2)]
    logits_of(runner, part(shared, 0, 8, [[5, 6]], needs_logits=False))
    logits = logits_of(
        runner, part(shared + tails[0], 8, 11, [[5, 6, 7]]), part(shared + tails[1], 8, 10, [[5, 6, 8]], request_id=1)
    )
    for row, tail in zip(logits, tails, strict=True):
        np.testing.assert_allclose(row, dense_logits(spec, shared + tail), atol=TOLERANCE)


def test_execute_answers_only_requests_that_need_logits_in_step_order() -> None:
    spec = small_spec()
    runner = build(spec)
    prompts = [prompt(4, seed=n) for n in range(3)]
    step = ScheduledStep(
        tuple(part(prompts[n], 0, 4, [[n]], needs_logits=n != 1, request_id=70 - n) for n in range(3)),
    )
    sampled = runner.execute(step)
    assert [token.request_id for token in sampled] == [70, 68]
    assert [token.token_id for token in sampled] == [int(dense_logits(spec, prompts[n]).argmax()) for n in (0, 2)]
    assert runner.execute(ScheduledStep((part(prompts[1], 0, 3, [[1]], needs_logits=False),))) == []


def test_memory_is_allocated_to_the_byte_as_computed() -> None:
    spec = small_spec("qwen2")
    memory = numpy_memory(spec, NUM_BLOCKS, 4, 4)
    values = sum(int(np.prod(shape)) for shape in expected_tensors(spec).values())
    assert memory == {
        "weights": 4 * values,
        "kv_pool": NUM_BLOCKS * (spec.num_layers * 2 * 4 * spec.kv_size * 4),
        "workspace": 0,
        "logits": 4 * 61 * 4,
    }
    build(spec)  # checks the ledger


@pytest.mark.parametrize("account", ["weights", "kv_pool", "logits"])
def test_a_plan_that_is_a_byte_short_is_refused(account: str) -> None:
    spec = small_spec()
    memory = numpy_memory(spec, NUM_BLOCKS, 4, 4)
    memory[account] -= 1
    with pytest.raises(EngineError, match=account):
        NumpyRunner(
            RandomModel(spec),
            MemoryLedger(memory),
            num_blocks=NUM_BLOCKS,
            block_size=4,
            max_num_batched_tokens=64,
            max_num_seqs=4,
        )


def test_a_nan_in_the_model_leaves_no_token_to_choose_and_says_so() -> None:
    class BrokenModel(RandomModel):
        def read_tensor(self, name: str) -> np.ndarray:
            return super().read_tensor(name) * np.float32(np.nan if name == "final_norm" else 1)

    spec = dataclasses.replace(small_spec(), tied_embeddings=True)
    runner = NumpyRunner(
        BrokenModel(spec),
        MemoryLedger(numpy_memory(spec, 2, 4, 1)),
        num_blocks=2,
        block_size=4,
        max_num_batched_tokens=8,
        max_num_seqs=1,
    )
    (sampled,) = runner.execute(ScheduledStep((part(prompt(3), 0, 3, [[0]], request_id=17),)))
    assert (sampled.request_id, sampled.token_id) == (17, None)
    assert "the largest logit is nan" in sampled.error


def test_close_lets_go_of_the_tensors() -> None:
    class WatchedLedger(MemoryLedger):
        def allocate(self, account: str, num_bytes: int) -> memoryview:
            memory = super().allocate(account, num_bytes)
            watched.append(weakref.ref(memory.obj))
            return memory

    watched: list[weakref.ref[object]] = []
    ledger = WatchedLedger(numpy_memory(small_spec(), 2, 4, 1))
    runner = NumpyRunner(
        RandomModel(small_spec()), ledger, num_blocks=2, block_size=4, max_num_batched_tokens=8, max_num_seqs=1
    )
    assert [memory() is not None for memory in watched] == [True] * 3
    runner.close()
    gc.collect()
    assert [memory() for memory in watched] == [None] * 3
