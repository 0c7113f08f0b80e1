"""What a decoder-only transformer looks like, whichever file format it came from.

A ``ModelSpec`` is the only description of a model that the rest of Ullage reads: the planner counts bytes from it, the
runners build the decoder from it. Tensor names and orientations are canonical (see ``expected_tensors``); file readers
translate theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RUNNABLE_ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")

MAX_LAYERS = 1024
MAX_HEAD_SIZE = 4096
"""Far above any real model; a file that claims more is damaged, and would cost memory before that shows."""

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of one layer, in the rotate-half convention (first half paired with second half).

    ``inv_freq[i] = theta ** (-2 i / head_size) / freq_factors[i]``; Llama 3, linear and YaRN scaling all reduce to such
    factors, so a runner needs to know nothing of them. Source: RoFormer, arXiv:2104.09864; Llama 3 factors as in
    transformers' ``modeling_rope_utils``.
    """

    theta: float
    freq_factors: tuple[float, ...] | None = None
    """One divisor per frequency (head_size / 2 of them); None means all ones."""
    attention_factor: float = 1.0
    """Multiplies cos and sin (YaRN); 1 otherwise."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer."""

    rope: RopeSpec
    window: int | None = None
    """Sliding window: a query at position p sees keys at positions > p - window. None: sees all before it."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Dimensions and conventions of one model. All sizes are in elements."""

    architecture: str
    """One of ``RUNNABLE_ARCHITECTURES``."""
    name: str
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    max_position: int
    """The context the model was trained for, in tokens."""
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    activation: Activation = "silu"
    tied_embeddings: bool = False
    """The output matrix is the embedding matrix; there is no ``lm_head`` tensor."""
    qkv_bias: bool = False
    qk_norm: bool = False
    """RMS norm over each head of q and k before rope (qwen3, gemma3)."""
    post_norms: bool = False
    """RMS norm on the output of attention and feed-forward, before the residual add (gemma3)."""
    embedding_scale: float = 1.0
    """Multiplies the embedding row of each token (gemma3: sqrt(hidden_size))."""
    attention_scale: float | None = None
    """Multiplies q.k; None means 1 / sqrt(head_size)."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_size

    @property
    def score_scale(self) -> float:
        return self.attention_scale if self.attention_scale is not None else float(self.head_size**-0.5)


def expected_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor the model has, by canonical name, with its shape.

    Matrices are ``(out, in)``: ``y = W x``. Norm weights are the plain multiplier (an offset of 1 that a file leaves
    out is added by the reader). q and k rows are in rotate-half order.
    """
    hidden, inter = spec.hidden_size, spec.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {"embed": (spec.vocab_size, hidden)}
    for i in range(spec.num_layers):
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (hidden,),
            "q": (spec.q_size, hidden),
            "k": (spec.kv_size, hidden),
            "v": (spec.kv_size, hidden),
            "o": (hidden, spec.q_size),
            "ffn_norm": (hidden,),
            "gate": (inter, hidden),
            "up": (inter, hidden),
            "down": (hidden, inter),
        }
        if spec.qkv_bias:
            layer |= {"q_bias": (spec.q_size,), "k_bias": (spec.kv_size,), "v_bias": (spec.kv_size,)}
        if spec.qk_norm:
            layer |= {"q_norm": (spec.head_size,), "k_norm": (spec.head_size,)}
        if spec.post_norms:
            layer |= {"post_attn_norm": (hidden,), "post_ffn_norm": (hidden,)}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    shapes["final_norm"] = (hidden,)
    if not spec.tied_embeddings:
        shapes["lm_head"] = (spec.vocab_size, hidden)
    return shapes
