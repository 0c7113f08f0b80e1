"""The decoder, described once: a list of fused operators, which the native side runs one after another.

    x = embed(tokens)
    in each layer    q, k, v = qkv(norm(x))
                     rope; append k and v to the cache
                     attention over the cache
                     branch = o(attention);      x += branch, normed first where the model has post norms
                     gate, up = gate_up(norm(x))
                     branch = down(activation(gate) * up);      x += branch
    logits = head(norm(x))

A branch is added to ``x`` by the operator that next reads ``x``, together with its norm: one pass over memory instead
of two. Source of the architecture: Llama (arXiv:2302.13971) with the variations that ``ModelSpec`` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ullage.kernels.weight_formats import TILE_OUTPUTS
from ullage.models.spec import ModelSpec

OperatorKind = Literal["embed", "qkv", "append", "attend", "output", "gate_up", "down", "head"]
OPERATOR_KINDS: tuple[OperatorKind, ...] = ("embed", "qkv", "append", "attend", "output", "gate_up", "down", "head")

PANEL_OUTPUTS = 16


@dataclass(frozen=True, slots=True)
class Rows:
    """Which outputs of a packed matrix the rows of a canonical tensor fill: row r goes to
    ``first_output + r // 16 * group_stride + r % 16``."""

    tensor: str
    first_output: int = 0
    group_stride: int = PANEL_OUTPUTS


@dataclass(frozen=True, slots=True)
class MatrixSource:
    """A matrix made of the rows of one or more tensors."""

    rows: tuple[Rows, ...]
    outputs: int
    k: int


@dataclass(frozen=True, slots=True)
class Operator:
    """One stage of the decoder."""

    kind: OperatorKind
    layer: int = -1
    """-1 outside the layers."""
    matrix: MatrixSource | None = None
    vectors: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Float vectors by the name the kernels know, each the values of one or more tensors, one after another."""
    adds_branch: bool = False
    """Adds the output of the operator before to the residual stream first."""


def decoder_program(spec: ModelSpec) -> tuple[Operator, ...]:
    """All operators of a model, in the order they run."""
    return tuple(_operators(spec))


def _operators(spec: ModelSpec) -> Iterator[Operator]:
    vocabulary = MatrixSource((Rows("embed"),), spec.vocab_size, spec.hidden_size)
    yield Operator("embed", matrix=vocabulary)
    branch_norm: dict[str, tuple[str, ...]] = {}
    for i in range(spec.num_layers):
        yield from _attention_of(spec, i, branch_norm)
        yield from _feed_forward_of(spec, i)
        branch_norm = _vectors(i, post_norm="post_ffn_norm") if spec.post_norms else {}
    head = vocabulary if spec.tied_embeddings else MatrixSource((Rows("lm_head"),), spec.vocab_size, spec.hidden_size)
    yield Operator("head", matrix=head, vectors={**branch_norm, "norm": ("final_norm",)}, adds_branch=True)


def _attention_of(spec: ModelSpec, i: int, branch_norm: dict[str, tuple[str, ...]]) -> Iterator[Operator]:
    q_size, kv_size = spec.q_size, spec.kv_size
    qkv = MatrixSource(
        (
            Rows(f"layers.{i}.q", 0),
            Rows(f"layers.{i}.k", q_size),
            Rows(f"layers.{i}.v", q_size + kv_size),
        ),
        q_size + 2 * kv_size,
        spec.hidden_size,
    )
    norms = {**branch_norm, **_vectors(i, norm="attn_norm")}
    yield Operator("qkv", i, matrix=qkv, vectors=norms, adds_branch=i > 0)
    vectors: dict[str, tuple[str, ...]] = {}
    if spec.qkv_bias:
        vectors["bias"] = (f"layers.{i}.q_bias", f"layers.{i}.k_bias", f"layers.{i}.v_bias")
    if spec.qk_norm:
        vectors |= _vectors(i, q_norm="q_norm", k_norm="k_norm")
    yield Operator("append", i, vectors=vectors)
    yield Operator("attend", i)
    yield Operator("output", i, matrix=MatrixSource((Rows(f"layers.{i}.o"),), spec.hidden_size, q_size))


def _feed_forward_of(spec: ModelSpec, i: int) -> Iterator[Operator]:
    # 16 gate rows, then the 16 up rows they are multiplied with: the product is taken where both are at hand.
    gate_up = MatrixSource(
        (
            Rows(f"layers.{i}.gate", 0, group_stride=TILE_OUTPUTS),
            Rows(f"layers.{i}.up", PANEL_OUTPUTS, group_stride=TILE_OUTPUTS),
        ),
        2 * spec.intermediate_size,
        spec.hidden_size,
    )
    norms = _vectors(i, norm="ffn_norm")
    if spec.post_norms:
        norms |= _vectors(i, post_norm="post_attn_norm")
    yield Operator("gate_up", i, matrix=gate_up, vectors=norms, adds_branch=True)
    down = MatrixSource((Rows(f"layers.{i}.down"),), spec.hidden_size, spec.intermediate_size)
    yield Operator("down", i, matrix=down)


def _vectors(layer: int, **names: str) -> dict[str, tuple[str, ...]]:
    return {name: (f"layers.{layer}.{tensor}",) for name, tensor in names.items()}
