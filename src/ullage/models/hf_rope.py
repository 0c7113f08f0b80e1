"""The rotary embedding keys of ``config.json``, old style and new.

    old: rope_theta and rope_scaling beside each other (Gemma 3 adds rope_local_base_freq for its sliding layers)
    new: rope_parameters with rope_theta inside, and one such object per kind of layer where they differ

Source: transformers' ``modeling_rope_utils``.
"""

from __future__ import annotations

from ullage.models.fields import SMALL, Fields
from ullage.models.rope_scaling import Yarn, linear_rope, llama3_rope, yarn_attention_factor, yarn_rope
from ullage.models.spec import RopeSpec


def read_rope(keys: Fields, layer_type: str, default_theta: float, head_size: int, *, old_local: bool) -> RopeSpec:
    """
    :param layer_type: ``full_attention`` or ``sliding_attention``
    :param old_local: in the old style, these layers have a base of their own and no scaling (Gemma 3's sliding ones)
    :raises ModelFileError: a kind of scaling that can't run, or an impossible value
    """
    nested = _nested(keys, layer_type)
    if old_local and nested is None:
        return RopeSpec(keys.number("rope_local_base_freq", default_theta, above=1.0))
    rope = nested or keys.section("rope_parameters") or keys.section("rope_scaling")
    theta = default_theta if old_local else keys.number("rope_theta", default_theta, above=1.0)
    if rope is None:
        return RopeSpec(theta)
    theta = rope.number("rope_theta", theta, above=1.0)
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise rope.error("partial_rotary_factor", "other than 1 can't run here")
    kind = _kind(rope)
    if kind == "linear":
        return linear_rope(theta, head_size, rope.number("factor", above=SMALL))
    if kind == "llama3":
        return _llama3(keys, rope, theta, head_size)
    if kind == "yarn":
        return yarn_rope(theta, head_size, _yarn(keys, rope))
    if kind == "default":
        return RopeSpec(theta)
    raise rope.error("rope_type", f"{kind!r:.80} can't run here", hint="default, linear, llama3 and yarn can")


def extended_context(keys: Fields, max_position: int) -> int:
    """The trained context; with YaRN, what it was stretched to (some files state only the original one)."""
    rope = _nested(keys, "full_attention") or keys.section("rope_parameters") or keys.section("rope_scaling")
    if rope is None or _kind(rope) != "yarn":
        return max_position
    yarn = _yarn(keys, rope)
    return max(max_position, round(yarn.factor * yarn.original_context))


def _nested(keys: Fields, layer_type: str) -> Fields | None:
    parameters = keys.section("rope_parameters")
    return parameters.section(layer_type) if parameters is not None else None


def _kind(rope: Fields) -> str:
    return rope.text("rope_type", rope.text("type", "default"))


def _original_context(keys: Fields, rope: Fields) -> int:
    if rope.has("original_max_position_embeddings"):
        return rope.integer("original_max_position_embeddings")
    return keys.integer("max_position_embeddings")


def _llama3(keys: Fields, rope: Fields, theta: float, head_size: int) -> RopeSpec:
    low, high = rope.number("low_freq_factor", above=SMALL), rope.number("high_freq_factor", above=SMALL)
    if high <= low:
        raise rope.error("high_freq_factor", f"({high:g}) must be above low_freq_factor ({low:g})")
    return llama3_rope(
        theta,
        head_size,
        factor=rope.number("factor", above=SMALL),
        low=low,
        high=high,
        original_context=_original_context(keys, rope),
    )


def _yarn(keys: Fields, rope: Fields) -> Yarn:
    factor = rope.number("factor", above=SMALL)
    attention_factor = None
    if rope.has("attention_factor"):
        attention_factor = rope.number("attention_factor", above=SMALL)
    elif rope.has("mscale") and rope.has("mscale_all_dim"):
        attention_factor = yarn_attention_factor(factor, rope.number("mscale")) / yarn_attention_factor(
            factor, rope.number("mscale_all_dim")
        )
    return Yarn(
        factor=factor,
        original_context=_original_context(keys, rope),
        beta_fast=rope.number("beta_fast", 32.0, above=SMALL),
        beta_slow=rope.number("beta_slow", 1.0, above=SMALL),
        attention_factor=attention_factor,
        whole_bounds=rope.flag("truncate", True),
    )
