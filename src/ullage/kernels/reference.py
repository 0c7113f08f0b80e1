"""The computation of a decoder-only transformer in numpy: the specification of the native kernels.

Each function says what one kernel computes, plainly. Everything is float32; rows (tokens) come first. A native kernel
may fuse, reorder or use narrower types, but it is tested against the function of the same name here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ullage.models.spec import Activation, RopeSpec

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

QUERY_TILE = 64
"""Queries whose scores are held at once: keeps the scores small however long the prompt is."""


def linear(x: Floats, weight: Floats, bias: Floats | None = None) -> Floats:
    """``x W^T + b``.

    :param x: [rows, in]
    :param weight: [out, in]
    :param bias: [out]
    :returns: [rows, out]
    """
    product = x @ weight.T
    return product if bias is None else product + bias


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Divides each row by its root mean square, then multiplies by the weight. Source: arXiv:1910.07467.

    :param x: [..., size]
    :param weight: [size]
    """
    mean_square: Floats = np.mean(np.square(x), axis=-1, keepdims=True)
    root: Floats = np.sqrt(mean_square + np.float32(eps))
    return x / root * weight


def inverse_frequencies(rope: RopeSpec, head_size: int) -> NDArray[np.float64]:
    """``[head_size / 2]``, see ``RopeSpec``."""
    frequencies = rope.theta ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    if rope.freq_factors is not None:
        frequencies = frequencies / np.asarray(rope.freq_factors, dtype=np.float64)
    return frequencies


def rope_tables(rope: RopeSpec, head_size: int, positions: Integers) -> tuple[Floats, Floats]:
    """Cosine and sine of each position's angles; computed in float64, because far positions have large angles.

    :param positions: [rows]
    :returns: two of [rows, head_size / 2]
    """
    angles = np.outer(positions, inverse_frequencies(rope, head_size))
    cos, sin = np.cos(angles) * rope.attention_factor, np.sin(angles) * rope.attention_factor
    return cos.astype(np.float32), sin.astype(np.float32)


def apply_rope(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotates each pair (element i, element i + head_size / 2) of a head. Source: RoFormer, arXiv:2104.09864.

    :param x: [rows, heads, head_size]
    :param cos: [rows, head_size / 2], as ``sin``
    """
    first, second = np.split(x, 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def silu(x: Floats) -> Floats:
    """``x / (1 + exp(-x))``, in a form that can't overflow."""
    decay: Floats = np.exp(-np.abs(x))
    return x * np.where(x >= 0, np.float32(1), decay) / (1 + decay)


def gelu_tanh(x: Floats) -> Floats:
    """The tanh form of GELU. Source: arXiv:1606.08415."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    share: Floats = np.tanh(inner)
    return np.float32(0.5) * x * (1 + share)


def gated_product(gate: Floats, up: Floats, activation: Activation) -> Floats:
    """``activation(gate) * up``, element by element. Source: GLU variants, arXiv:2002.05202."""
    return (silu(gate) if activation == "silu" else gelu_tanh(gate)) * up


def softmax(x: Floats) -> Floats:
    """Over the last axis; -infinity gets exactly 0. Each row needs one finite element."""
    weights: Floats = np.exp(x - x.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def log_softmax(x: Floats) -> Floats:
    """Natural logarithm of ``softmax``; the sum is taken in float64, because a vocabulary is long."""
    shifted: Floats = x - x.max(axis=-1, keepdims=True)
    log_total: Floats = np.log(np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return shifted - log_total


def token_slots(block_ids: Sequence[int], positions: Integers, block_size: int) -> tuple[Integers, Integers]:
    """Where the tokens at ``positions`` of one request live: (block, offset in the block), each [rows]. None of these
    blocks may have been given back.

    ::

        block table   [ 7 ][ 2 ][ 5 ]         block_size 4
        positions     0..3  4..7  8..11       position 6 -> block 2, offset 2
    """
    blocks = np.asarray(block_ids, dtype=np.int64)[positions // block_size]
    assert blocks.min() >= 0, "a block that was given back is still needed"
    return blocks, positions % block_size


def paged_attention(
    queries: Floats,
    key_blocks: Floats,
    value_blocks: Floats,
    block_ids: Sequence[int],
    *,
    first_position: int,
    scale: float,
    window: int | None = None,
) -> Floats:
    """Causal attention of one request's new tokens over all its tokens so far, which stand in blocks.

    The query at position p sees keys at positions ``max(0, p - window + 1) .. p``. Query heads share key heads in
    groups of consecutive heads. Sources: PagedAttention, arXiv:2309.06180; grouped heads, arXiv:2305.13245.

    :param queries: [rows, heads, head_size], at positions ``first_position, first_position + 1, ...``
    :param key_blocks: [num_blocks, block_size, kv_heads, head_size], as ``value_blocks``; the new tokens' keys and
        values are in there already
    :param scale: multiplies the scores before softmax
    :returns: [rows, heads, head_size]
    """
    num_rows, num_heads, head_size = queries.shape
    block_size, num_kv_heads = key_blocks.shape[1:3]
    first_key, _ = _visible_range(first_position, first_position, window)
    slots = token_slots(block_ids, np.arange(first_key, first_position + num_rows), block_size)
    keys, values = key_blocks[slots], value_blocks[slots]  # [tokens, kv_heads, head_size]

    # [kv_heads, group, rows, head_size]: each key head meets its own group of query heads
    grouped = queries.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_size).transpose(1, 2, 0, 3)
    output = np.empty_like(queries)
    for start in range(0, num_rows, QUERY_TILE):
        stop = min(start + QUERY_TILE, num_rows)
        low, high = _visible_range(first_position + start, first_position + stop - 1, window)
        seen = slice(low - first_key, high - first_key)
        mixed = _attend(
            grouped[:, :, start:stop],
            keys[seen].transpose(1, 0, 2)[:, None],
            values[seen].transpose(1, 0, 2)[:, None],
            _visible(np.arange(first_position + start, first_position + stop), np.arange(low, high), window),
            scale,
        )
        output[start:stop] = mixed.transpose(2, 0, 1, 3).reshape(stop - start, num_heads, head_size)
    return output


def _attend(queries: Floats, keys: Floats, values: Floats, visible: NDArray[np.bool_], scale: float) -> Floats:
    """``softmax(Q K^T scale + mask) V``. Source: arXiv:1706.03762.

    :param queries: [kv_heads, group, rows, head_size]
    :param keys: [kv_heads, 1, tokens, head_size], as ``values``
    :param visible: [rows, tokens]
    :returns: as ``queries``
    """
    scores = (queries @ keys.swapaxes(-1, -2)) * np.float32(scale)
    probabilities = softmax(np.where(visible, scores, np.float32(-np.inf)))
    mixed: Floats = probabilities @ values
    return mixed


def _visible_range(first_position: int, last_position: int, window: int | None) -> tuple[int, int]:
    """The key positions, from and to (exclusive), that queries at first..last position can see."""
    low = 0 if window is None else max(0, first_position - window + 1)
    return low, last_position + 1


def _visible(query_positions: Integers, key_positions: Integers, window: int | None) -> NDArray[np.bool_]:
    """[queries, keys]: which key each query sees."""
    distance = query_positions[:, None] - key_positions[None, :]
    visible: NDArray[np.bool_] = distance >= 0
    return visible if window is None else visible & (distance < window)
