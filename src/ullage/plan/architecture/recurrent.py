"""Layers whose memory doesn't grow with the sequence: linear attention, state-space layers, short convolutions."""

from __future__ import annotations

from ullage.base.errors import ConfigError
from ullage.plan.architecture.fields import Fields
from ullage.plan.architecture.kinds import RecurrentState
from ullage.plan.weights.tensors import Weight, linear, vector


def state_dtype(fields: Fields) -> str | None:
    """The type that the configuration asks for the state matrix; None: the engine's choice."""
    return fields.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype", default="") or None


def linear_layer(fields: Fields, hidden: int) -> tuple[RecurrentState, tuple[Weight, ...]]:
    """Linear attention: gated delta networks, kimi delta attention or lightning attention, by the fields there are.

    :raises ConfigError: fields of none of them
    """
    if fields.has("linear_num_value_heads"):
        return _gated_delta(fields, hidden)
    section = fields.section("linear_attn_config")
    if section is not None:
        return _kimi_delta(section, hidden)
    if fields.has("attn_type_list"):
        return _lightning(fields, hidden)
    raise ConfigError(
        f"{fields.path} has linear attention layers of a kind that isn't known",
        hint="known are gated delta networks (linear_num_value_heads), kimi delta attention (linear_attn_config) "
        "and lightning attention (attn_type_list)",
    )


def _gated_delta(fields: Fields, hidden: int) -> tuple[RecurrentState, tuple[Weight, ...]]:
    """Qwen3-Next, Qwen3.5 and after."""
    value_heads, key_heads = fields.integer("linear_num_value_heads"), fields.integer("linear_num_key_heads")
    key_dim, value_dim = fields.integer("linear_key_head_dim"), fields.integer("linear_value_head_dim")
    if value_heads % key_heads:
        raise ConfigError(f"{fields.path}: linear_num_key_heads {key_heads} doesn't divide linear_num_value_heads")
    kernel = fields.integer("linear_conv_kernel_dim")
    state = RecurrentState("gated_delta", kernel, value_heads, value_dim, key_dim, key_heads, state_dtype(fields))
    keys, values = key_heads * key_dim, value_heads * value_dim
    return state, (
        linear("linear_attn.in_proj_qkvz", 2 * keys + 2 * values, hidden, split="rows"),
        Weight("linear_attn.in_proj_ba", 2 * value_heads, hidden, split="rows", linear=True),
        Weight("linear_attn.conv1d", 2 * keys + values, kernel, split="rows"),
        vector("linear_attn.A_log", value_heads, split="rows", float32=True),
        vector("linear_attn.dt_bias", value_heads, split="rows"),
        vector("linear_attn.norm", value_dim),
        linear("linear_attn.out_proj", hidden, values, split="columns"),
    )


def _kimi_delta(section: Fields, hidden: int) -> tuple[RecurrentState, tuple[Weight, ...]]:
    """Kimi Linear: queries, keys and values each pass a convolution; the state is kept in f32."""
    num_heads, head_dim = section.integer("num_heads"), section.integer("head_dim")
    kernel = section.integer("short_conv_kernel_size", default=4)
    state = RecurrentState("kimi_delta", kernel, num_heads, head_dim, head_dim, num_heads, "float32")
    width = num_heads * head_dim
    projections = tuple(linear(f"self_attn.{name}_proj", width, hidden, split="rows") for name in "qkv")
    return state, (
        *projections,
        Weight("self_attn.conv1d", 3 * width, kernel, split="rows"),
        linear("self_attn.f_a_proj", head_dim, hidden, split="whole"),
        linear("self_attn.f_b_proj", width, head_dim, split="rows"),
        linear("self_attn.g_a_proj", head_dim, hidden, split="whole"),
        linear("self_attn.g_b_proj", width, head_dim, split="rows"),
        linear("self_attn.b_proj", num_heads, hidden, split="rows"),
        vector("self_attn.A_log", num_heads, split="rows", float32=True),
        vector("self_attn.dt_bias", width, split="rows", float32=True),
        vector("self_attn.o_norm", head_dim),
        linear("self_attn.o_proj", hidden, width, split="columns"),
    )


def _lightning(fields: Fields, hidden: int) -> tuple[RecurrentState, tuple[Weight, ...]]:
    """MiniMax-01: a matrix of head size squared per head, no convolution."""
    num_heads = fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", default=max(1, hidden // num_heads))
    width = num_heads * head_dim
    return RecurrentState("lightning", 1, num_heads, head_dim, head_dim, 0), (
        linear("self_attn.qkv_proj", 3 * width, hidden, split="rows"),
        linear("self_attn.output_gate", width, hidden, split="rows"),
        vector("self_attn.norm", width, split="rows"),
        linear("self_attn.out_proj", hidden, width, split="columns"),
    )


def state_space_layer(fields: Fields, hidden: int) -> tuple[RecurrentState, tuple[Weight, ...]]:
    """A state-space layer: Mamba 2 where it has heads, Mamba 1 where it has a rank of time steps instead."""
    if fields.has(*_HEADS) or (fields.has("mamba_headdim", "head_dim") and fields.has("mamba_ngroups", "n_groups")):
        return _mamba2(fields, hidden)
    return _mamba1(fields, hidden)


_HEADS = ("mamba_num_heads", "n_mamba_heads", "mamba_n_heads")


def _mamba2(fields: Fields, hidden: int) -> tuple[RecurrentState, tuple[Weight, ...]]:
    head_dim = fields.integer("mamba_head_dim", "mamba_headdim", "mamba_d_head", "head_dim")
    inner = fields.optional_integer("mamba_d_ssm")
    if inner is None:
        inner = round(fields.number("mamba_expand", "expand", default=2) * hidden)
    num_heads = fields.integer(*_HEADS, "num_heads", default=max(1, inner // head_dim))
    inner = num_heads * head_dim
    kernel = fields.integer("conv_kernel", "mamba_d_conv")
    num_groups = fields.integer("mamba_ngroups", "mamba_n_groups", "n_groups", default=1)
    state_dim = fields.integer("ssm_state_size", "mamba_d_state", "state_size")
    chunk = fields.optional_integer("mamba_chunk_size", "chunk_size")
    state = RecurrentState("mamba2", kernel, num_heads, head_dim, state_dim, num_groups, state_dtype(fields), chunk)
    channels = inner + 2 * num_groups * state_dim
    return state, (
        linear("mixer.in_proj", inner + channels + num_heads, hidden, split="rows"),
        Weight("mixer.conv1d", channels, kernel, split="rows"),
        vector("mixer.conv1d.bias", channels, split="rows"),
        vector("mixer.A_log", num_heads, split="rows", float32=True),
        vector("mixer.D", num_heads, split="rows"),
        vector("mixer.dt_bias", num_heads, split="rows"),
        vector("mixer.norm", inner, split="rows"),
        linear("mixer.out_proj", hidden, inner, split="columns"),
    )


def _mamba1(fields: Fields, hidden: int) -> tuple[RecurrentState, tuple[Weight, ...]]:
    inner = fields.optional_integer("intermediate_size") if fields.text("model_type", default="") == "mamba" else None
    inner = inner or round(fields.number("mamba_expand", "expand", default=2) * hidden)
    kernel = fields.integer("mamba_d_conv", "conv_kernel")
    state_dim = fields.integer("mamba_d_state", "state_size", "ssm_state_size")
    rank = fields.integer("mamba_dt_rank", "time_step_rank", default=-(-hidden // 16))
    return RecurrentState("mamba1", kernel, inner, 1, state_dim, 0, state_dtype(fields)), (
        linear("mamba.in_proj", 2 * inner, hidden, split="rows"),
        Weight("mamba.conv1d", inner, kernel, split="rows"),
        vector("mamba.conv1d.bias", inner, split="rows"),
        linear("mamba.x_proj", rank + 2 * state_dim, inner, split="columns"),
        linear("mamba.dt_proj", inner, rank, split="rows"),
        vector("mamba.dt_proj.bias", inner, split="rows"),
        Weight("mamba.A_log", inner, state_dim, split="rows", float32=True),
        vector("mamba.D", inner, split="rows"),
        linear("mamba.out_proj", hidden, inner, split="columns"),
    )


def short_convolution(fields: Fields, hidden: int) -> tuple[RecurrentState, tuple[Weight, ...]]:
    """LFM2: a gated convolution over the last few tokens, nothing else."""
    kernel = fields.integer("conv_L_cache")
    return RecurrentState("short_convolution", kernel, hidden, 1, 0, 0), (
        linear("conv.in_proj", 3 * hidden, hidden, split="rows"),
        Weight("conv.conv", hidden, kernel, split="rows"),
        linear("conv.out_proj", hidden, hidden, split="columns"),
    )
