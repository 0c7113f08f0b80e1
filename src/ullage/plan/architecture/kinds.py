"""What a layer remembers of a sequence: the kinds of cache there are, in numbers of values, before any engine's rules.

Bytes, paddings, blocks and ranks are the engines' affair (``ullage.plan.engines``).
"""

from __future__ import annotations

from dataclasses import dataclass

from ullage.plan.weights.tensors import Weight


@dataclass(frozen=True, slots=True)
class AttentionCache:
    """Keys and values of each token, per KV head (multi-head, grouped and multi-query attention).

    :ivar k_head_dim: values of a key; MiMo-V2 has wider keys than values
    :ivar window: tokens that a sliding layer sees, itself included; None: all
    :ivar chunk: tokens of a chunk within which a layer sees (Llama 4); None: all
    """

    num_kv_heads: int
    k_head_dim: int
    v_head_dim: int
    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class LatentCache:
    """Multi-head latent attention: one compressed vector and one rotary part a token, the same for all heads.

    The dimensions of the expanded heads are kept, for engines that store those instead.
    """

    latent_dim: int
    rope_dim: int
    num_heads: int
    nope_dim: int
    v_head_dim: int

    @property
    def k_head_dim(self) -> int:
        """Values of one expanded key."""
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True, slots=True)
class IndexerCache:
    """Keys by which sparse attention picks its tokens: one small head, replicated over ranks (DeepSeek V3.2, GLM-5).

    :ivar pool: tokens that share one entry (1: each token has its own)
    """

    head_dim: int
    num_heads: int = 1
    pool: int = 1


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """State of fixed size: the last inputs of a short convolution, and a matrix per head.

    Convolution: ``conv_kernel - 1`` rows of ``num_heads * head_dim + 2 * num_groups * state_dim`` channels.
    Matrix: ``num_heads * head_dim * state_dim`` values. Mamba 2: B and C have ``num_groups``; gated delta networks:
    queries and keys; kimi delta attention: as many groups as heads; Mamba 1: heads of one channel, no groups in the
    convolution; short convolutions: no matrix (``state_dim`` 0).

    :ivar form: name of the recurrence, for error messages and the types that engines choose
    :ivar dtype: type of the matrix that the configuration asks for; None: the engine's choice
    :ivar chunk: tokens that the recurrence's kernels take at once; None: not said
    """

    form: str
    conv_kernel: int
    num_heads: int
    head_dim: int
    state_dim: int
    num_groups: int
    dtype: str | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class CompressedCache:
    """Attention over compressed tokens beside a sliding window (DeepSeek V4).

    :ivar ratio: tokens that become one entry; 0: the window only
    :ivar window: tokens that are kept as they are
    :ivar index_head_dim: size of the indexer's keys over compressed tokens; None: no indexer
    """

    head_dim: int
    rope_dim: int
    window: int
    ratio: int
    index_head_dim: int | None


CacheKind = AttentionCache | LatentCache | IndexerCache | RecurrentState | CompressedCache


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer.

    :ivar caches: what it remembers; empty for layers without memory (an MLP of its own, or a shared cache)
    :ivar weights: its tensors
    """

    caches: tuple[CacheKind, ...]
    weights: tuple[Weight, ...]


@dataclass(frozen=True, slots=True)
class Architecture:
    """All that the memory of a model depends on.

    :ivar layers: the decoder's layers, in order
    :ivar prediction_layers: layers of the multi-token prediction head, loaded only for speculative decoding
    :ivar outer_weights: tensors outside the layers that the first pipeline stage holds (embeddings)
    :ivar final_weights: those that the last stage holds (final norm, output head)
    :ivar uncounted: parts whose weights are not derived here, by name (vision towers of unknown shape)
    :ivar rotary_dim: values of a rotary table's row, for engines that store one
    """

    model_type: str
    dtype: str
    hidden_size: int
    num_heads: int
    vocab_size: int
    max_positions: int
    layers: tuple[Layer, ...]
    prediction_layers: tuple[Layer, ...]
    outer_weights: tuple[Weight, ...]
    final_weights: tuple[Weight, ...]
    tied_embeddings: bool
    rotary_dim: int
    quantisation: dict[str, object] | None
    uncounted: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def caches(self, num_prediction_layers: int = 0) -> tuple[CacheKind, ...]:
        """Every cache, in layer order, with those of ``num_prediction_layers`` layers of the prediction head.

        A head that runs several times brings its one layer several times. One that the configuration doesn't describe
        has the attention of the model's last layer that sees everything: that is what such heads are made of.
        """
        described = self.prediction_layers or (self._last_full_layer(),)
        head = [described[index % len(described)] for index in range(num_prediction_layers)]
        return tuple(cache for layer in (*self.layers, *head) for cache in layer.caches)

    def _last_full_layer(self) -> Layer:
        def sees_everything(layer: Layer) -> bool:
            attention = [cache for cache in layer.caches if not isinstance(cache, RecurrentState)]
            return bool(attention) and not any(isinstance(c, AttentionCache) and c.window for c in attention)

        return next((layer for layer in reversed(self.layers) if sees_everything(layer)), self.layers[-1])
