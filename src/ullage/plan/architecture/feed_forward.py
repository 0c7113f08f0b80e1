"""Feed-forward layers: dense and with experts. They remember nothing; only their weights count."""

from __future__ import annotations

from ullage.base.errors import ConfigError
from ullage.plan.architecture.fields import Fields
from ullage.plan.weights.tensors import Weight, experts, linear, vector

_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")


def dense(fields: Fields, hidden: int, *, name: str = "mlp", width: int | None = None) -> tuple[Weight, ...]:
    """Two matrices, or three where a gate multiplies (SwiGLU)."""
    if width is None:
        width = fields.integer("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim", default=4 * hidden)
    names = ("gate_proj", "up_proj") if _gated(fields) else ("up_proj",)
    inner = tuple(linear(f"{name}.{part}", width, hidden, split="rows") for part in names)
    return (*inner, linear(f"{name}.down_proj", hidden, width, split="columns"))


def with_experts(fields: Fields, hidden: int) -> tuple[Weight, ...]:
    """A router, the experts, and the expert that every token passes, if there is one."""
    num_experts = fields.integer(*_EXPERTS)
    width = fields.integer("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    names = ("gate_proj", "up_proj") if _gated(fields) else ("up_proj",)
    inner = fields.integer("moe_latent_size", default=hidden)
    weights = [experts(f"mlp.experts.{part}", width, inner, num_experts, split="rows") for part in names]
    weights.append(experts("mlp.experts.down_proj", inner, width, num_experts, split="columns"))
    weights.append(Weight("mlp.gate", num_experts, hidden))
    if inner != hidden:  # Nemotron 3 Super: routed experts see a projection of the hidden state
        weights.append(linear("mlp.fc1_latent_proj", inner, hidden, split="whole"))
        weights.append(linear("mlp.fc2_latent_proj", hidden, inner, split="whole"))
    if fields.text("model_type", default="") == "gpt_oss":
        weights += [
            Weight("mlp.experts.gate_up_proj_bias", 2 * width, count=num_experts, split="rows", expert=True),
            Weight("mlp.experts.down_proj_bias", hidden, count=num_experts, expert=True),
            vector("mlp.router.bias", num_experts),
        ]
    return (*weights, *_shared(fields, hidden, width))


def _shared(fields: Fields, hidden: int, width: int) -> tuple[Weight, ...]:
    shared = fields.optional_integer(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size", at_least=0
    )
    gate = fields.has("shared_expert_intermediate_size")
    if shared is None:
        shared = width * (fields.optional_integer("n_shared_experts", "moe_num_shared_experts", at_least=0) or 0)
    if not shared:
        return ()
    weights = dense(fields, hidden, name="mlp.shared_expert", width=shared)
    return (*weights, Weight("mlp.shared_expert_gate", 1, hidden)) if gate else weights


def expert_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Which layers have experts: a list, the first few dense, or every n-th.

    :raises ConfigError: a list of the wrong length
    """
    if not fields.optional_integer(*_EXPERTS, at_least=0):
        return (False,) * num_layers
    layers = range(num_layers)
    kinds = fields.texts("mlp_layer_types")
    if kinds is not None:
        _check_length(fields, "mlp_layer_types", len(kinds), num_layers)
        return tuple(kind != "dense" for kind in kinds)
    if isinstance(fields.values.get("moe_layer_freq"), list):
        flags = fields.integers("moe_layer_freq") or ()
        _check_length(fields, "moe_layer_freq", len(flags), num_layers)
        return tuple(flag == 1 for flag in flags)
    if fields.has("expert_layer_period"):
        period, offset = fields.integer("expert_layer_period"), fields.integer("expert_layer_offset", at_least=0)
        return tuple(index % period == offset for index in layers)
    first = fields.integer("first_k_dense_replace", default=0, at_least=0)
    period = fields.integer("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", default=1)
    shift = 0 if fields.has("moe_layer_freq") else 1
    dense_only = fields.integers("mlp_only_layers") or ()
    return tuple(
        index >= first and index not in dense_only and (index + (shift if period > 1 else 0)) % period == 0
        for index in layers
    )


def _gated(fields: Fields) -> bool:
    return fields.boolean("gated_mlp", default=True)


def _check_length(fields: Fields, name: str, length: int, num_layers: int) -> None:
    if length != num_layers:
        raise ConfigError(f"{fields.path}: {name} describes {length} layers, num_hidden_layers says {num_layers}")
