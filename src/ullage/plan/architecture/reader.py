"""From a model's ``config.json`` to its architecture: what each layer remembers, and the shape of every weight."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ullage.base.errors import ConfigError
from ullage.plan.architecture.attention import (
    grouped_attention,
    head_shape,
    indexed_layers,
    latent_attention,
)
from ullage.plan.architecture.compressed import compressed_attention, compression_ratios
from ullage.plan.architecture.defaults import CLASS_DEFAULTS
from ullage.plan.architecture.feed_forward import dense, expert_layers, with_experts
from ullage.plan.architecture.fields import MAX_LAYERS, Fields
from ullage.plan.architecture.kinds import Architecture, CacheKind, Layer
from ullage.plan.architecture.pattern import LayerKind, layer_kinds
from ullage.plan.architecture.recurrent import linear_layer, short_convolution, state_space_layer
from ullage.plan.architecture.towers import tower_weights
from ullage.plan.weights.tensors import Weight, linear, vector

_TEXT_SECTIONS = ("text_config", "language_config", "llm_config", "thinker_config")
_UNKNOWN_MEMORY = re.compile(
    r"(^|_)(rwkv|wkv|mamba|ssm|retention|hyena|kda|kpool|compress|yoco|delta_net|block_configs|cross_attention_layers"
    r"|cla|nsa|msa|moba|sparse_attention|sparse_attn)(_|$)"
)
"""Names of fields that speak of a memory. One that nobody has read means a kind of cache that nobody works out."""
_STATE_SPACE = re.compile(r"(^|_)(mamba|ssm)")
_HARMLESS = re.compile(r"chunk_size|_bias|dropout|init|_eps|norm|_act|time_step|dtype|rope|kpool_|use_mamba_kernels")


def architecture_of(config: object) -> Architecture:
    """The architecture that a configuration describes.

    :param config: the parsed ``config.json``
    :raises ConfigError: a field that is missing, wrong or contradicts another one, or a kind of cache that isn't
        known; the message names the field
    """
    root = Fields.of(config)
    text = _text_fields(root)
    if text.boolean("is_encoder_decoder", default=False):
        raise ConfigError(f"{text.path}: is_encoder_decoder: caches of cross attention aren't known")
    model = _Model.of(text)
    layers = tuple(model.layer(index) for index in range(model.num_layers))
    _refuse_unknown_memory(text, has_state=any(kind in ("mamba", "hybrid") for kind in model.kinds))
    has_attention = any(kind in ("full", "sliding", "chunked", "hybrid") for kind in model.kinds)
    num_heads = text.integer("num_attention_heads", "n_head", "num_heads", default=None if has_attention else 1)
    tied = _tied(root, text)
    towers, uncounted = tower_weights(root, model.hidden)
    return Architecture(
        model_type=text.text("model_type", default="unknown"),
        dtype=_dtype(root, text),
        hidden_size=model.hidden,
        num_heads=num_heads,
        vocab_size=text.integer("vocab_size", default=1),
        max_positions=text.integer("max_position_embeddings", "n_positions", "max_seq_len", default=2048),
        layers=layers,
        prediction_layers=model.prediction_layers(),
        outer_weights=(*_outer_weights(text, model), *towers),
        final_weights=_final_weights(text, model.hidden, tied=tied),
        tied_embeddings=tied,
        rotary_dim=_rotary_dim(text) if has_attention else 0,
        quantisation=_quantisation(root, text),
        uncounted=uncounted,
    )


def _text_fields(root: Fields) -> Fields:
    """The part that describes the language model, with its class's defaults."""
    text = root
    for _ in range(2):  # Qwen's omni models nest twice
        text = text.section(*_TEXT_SECTIONS) or text
    model_type = text.text("model_type", default=root.text("model_type", default=""))
    return text.with_defaults({"model_type": model_type, **CLASS_DEFAULTS.get(model_type, {})})


@dataclass(frozen=True, slots=True)
class _Model:
    """What all layers have in common."""

    fields: Fields
    num_layers: int
    hidden: int
    kinds: tuple[LayerKind, ...]
    has_experts: tuple[bool, ...]
    has_indexer: tuple[bool, ...]
    ratios: tuple[int, ...] | None
    num_sharing: int

    @classmethod
    def of(cls, fields: Fields) -> _Model:
        num_layers = fields.integer("num_hidden_layers", "n_layer", "num_layers", at_most=MAX_LAYERS)
        return cls(
            fields,
            num_layers,
            fields.integer("hidden_size", "n_embd", "d_model"),
            layer_kinds(fields, num_layers),
            expert_layers(fields, num_layers),
            indexed_layers(fields, num_layers),
            compression_ratios(fields, num_layers),
            fields.integer("num_kv_shared_layers", default=0, at_least=0, at_most=num_layers),
        )

    def layer(self, index: int) -> Layer:
        """:raises ConfigError: a field that the layer's kind needs is missing or wrong"""
        ratio = None if self.ratios is None else self.ratios[index]
        caches, weights = self._mixer(self.kinds[index], indexed=self.has_indexer[index], ratio=ratio)
        if index >= self.num_layers - self.num_sharing:  # uses the cache of an earlier layer
            caches = ()
            weights = tuple(w for w in weights if not w.name.startswith(("self_attn.k_proj", "self_attn.v_proj")))
        return Layer(caches, (*weights, *self._feed_forward(index), *self._norms()))

    def prediction_layers(self) -> tuple[Layer, ...]:
        """Layers of the multi-token prediction head: full attention, like the model's own, and a projection."""
        names = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers", "num_mtp_modules")
        count = self.fields.optional_integer(*names, at_least=0, at_most=MAX_LAYERS) or 0
        if not count:
            return ()
        kind: LayerKind = "full" if "full" in self.kinds else self.kinds[-1]
        ratio = None if self.ratios is None else 0
        caches, weights = self._mixer(kind, indexed=any(self.has_indexer), ratio=ratio)
        joined = linear("eh_proj", self.hidden, 2 * self.hidden, split="whole")
        layer = Layer(caches, (*weights, *self._feed_forward(self.num_layers - 1), joined, *self._norms()))
        return (layer,) * count

    def _mixer(
        self, kind: LayerKind, *, indexed: bool, ratio: int | None
    ) -> tuple[tuple[CacheKind, ...], tuple[Weight, ...]]:
        fields, hidden = self.fields, self.hidden
        if kind in ("mlp", "moe"):
            return (), ()
        if kind in ("linear", "mamba", "conv"):
            build = {"linear": linear_layer, "mamba": state_space_layer, "conv": short_convolution}[kind]
            state, weights = build(fields, hidden)
            return (state,), weights
        if kind == "hybrid":
            return self._hybrid()
        if ratio is not None:
            return compressed_attention(fields, hidden, ratio)
        if fields.has("kv_lora_rank"):
            return latent_attention(fields, hidden, indexed=indexed)
        return grouped_attention(fields, kind, hidden)

    def _hybrid(self) -> tuple[tuple[CacheKind, ...], tuple[Weight, ...]]:
        """A state-space layer that also has attention: its own (Falcon-H1), or a block that layers share (Zamba 2)."""
        state, weights = state_space_layer(self.fields, self.hidden)
        caches, attention = grouped_attention(self.fields, "full", self.hidden)
        if self.fields.has("num_mem_blocks"):
            attention = (
                linear("linear", self.hidden, self.hidden, split="whole"),
                *_adapters(self.fields, self.hidden),
            )
        return (state, *caches), (*weights, *attention)

    def _feed_forward(self, index: int) -> tuple[Weight, ...]:
        fields, kind = self.fields, self.kinds[index]
        alone = {"mlp", "moe"} & set(self.kinds)
        if kind == "mlp" or (kind != "moe" and not alone and not self.has_experts[index]):
            # state-space layers of these families have no feed-forward part, unless the model mixes them with attention
            bare = fields.has("num_mem_blocks") or not fields.has("intermediate_size", "n_inner", "n_embd")
            pure = fields.text("model_type", default="") in ("mamba", "mamba2")
            return () if bare or pure else dense(fields, self.hidden)
        if kind == "moe" or (not alone and self.has_experts[index]):
            both = dense(fields, self.hidden) if fields.boolean("enable_moe_block", default=False) else ()
            return (*both, *with_experts(fields, self.hidden))
        return ()

    def _norms(self) -> tuple[Weight, ...]:
        count = 4 if self.fields.text("model_type", default="").startswith(("gemma2", "gemma3", "gemma4")) else 2
        return (Weight("layernorm", self.hidden, count=count),)


def _adapters(fields: Fields, hidden: int) -> tuple[Weight, ...]:
    rank = fields.integer("adapter_rank", default=128)
    width = fields.integer("intermediate_size")
    return (
        linear("feed_forward.gate_up_proj_adapter.0", rank, hidden, split="whole"),
        linear("feed_forward.gate_up_proj_adapter.1", 2 * width, rank, split="rows"),
    )


def _outer_weights(fields: Fields, model: _Model) -> tuple[Weight, ...]:
    """The embedding, and what belongs to no single layer."""
    hidden, vocabulary = model.hidden, fields.integer("vocab_size", default=1)
    weights = [Weight("embed_tokens", vocabulary, hidden, split="rows")]
    per_layer = fields.integer("hidden_size_per_layer_input", default=0, at_least=0) * model.num_layers
    if per_layer:
        rows = fields.integer("vocab_size_per_layer_input", default=vocabulary)
        weights.append(Weight("embed_tokens_per_layer", rows, per_layer, split="rows"))
    if fields.has("num_mem_blocks"):
        _, attention = grouped_attention(fields, "full", hidden)
        shared = (*attention, *dense(fields, hidden, name="feed_forward"), Weight("layernorm", 3 * hidden))
        weights += shared * fields.integer("num_mem_blocks", at_most=MAX_LAYERS)
    return tuple(weights)


def _final_weights(fields: Fields, hidden: int, *, tied: bool) -> tuple[Weight, ...]:
    norm = vector("norm", hidden)
    head = Weight("lm_head", fields.integer("vocab_size", default=1), hidden, split="rows", linear=True)
    return (norm,) if tied else (norm, head)


def _rotary_dim(fields: Fields) -> int:
    if fields.has("qk_rope_head_dim"):
        return fields.integer("qk_rope_head_dim", at_least=0)
    return int(head_shape(fields, "full").k_head_dim * fields.number("partial_rotary_factor", default=1))


def _tied(root: Fields, text: Fields) -> bool:
    if "tie_word_embeddings" in root.values:
        return root.boolean("tie_word_embeddings", default=False)
    return text.boolean("tie_word_embeddings", default=False)


def _dtype(root: Fields, text: Fields) -> str:
    return text.text("dtype", "torch_dtype", default=root.text("dtype", "torch_dtype", default="bfloat16"))


def _quantisation(root: Fields, text: Fields) -> dict[str, object] | None:
    section = root.section("quantization_config") or text.section("quantization_config")
    if section is None:
        return None
    expert_type = text.text("expert_dtype", default="")
    return dict(section.values) | ({"expert_dtype": expert_type} if expert_type else {})


def _refuse_unknown_memory(fields: Fields, *, has_state: bool) -> None:
    """Refuse a field about a memory that nobody has read; ``has_state``: those about state-space layers were."""
    for name, value in fields.values.items():
        known = name in fields.read or (has_state and _STATE_SPACE.search(name)) or _HARMLESS.search(name)
        if value and not known and _UNKNOWN_MEMORY.search(name):
            raise ConfigError(
                f"{fields.path}: {name} belongs to a kind of cache that isn't known",
                hint="its memory can't be worked out, and a guess would be wrong",
            )
